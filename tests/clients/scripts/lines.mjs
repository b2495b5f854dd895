// What a test says to a program, line by line of JSON, and how it is answered: one line each.

import { createInterface } from 'node:readline';

export const questions = () => createInterface({ input: process.stdin });

export const tell = (line) => console.log(JSON.stringify(line));

export const message = (error) => String(error?.message ?? error);
