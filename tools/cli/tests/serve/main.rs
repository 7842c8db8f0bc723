//! `upshift serve` as a user runs it: what it prints, its errors, signals, and the flags that change how it runs.
//! What clients get from it is tested in `upshift-serve`.

mod board;
mod check;
mod end;
mod harness;
mod limits;
mod listen;
mod permissions;
mod reload;
mod restart;
mod start;
