//! `upshift serve` as a user runs it: its output, errors, signals, and the flags that control the
//! process. The tests of `upshift-serve` cover its responses.

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
