//! Runs `upshift serve` as a user does, and checks its output, its errors, its reaction to signals,
//! and the flags that control the process. The tests of `upshift-serve` check its responses.

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
