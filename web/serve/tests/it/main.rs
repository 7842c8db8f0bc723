//! The server as its clients see it: each check with the answer that is expected, and where other
//! people's tools can ask, asked by them. What a tool is missing for says `skipped: `.

mod attacks;
mod compression;
mod errors;
mod files;
mod floods;
mod fuzz;
mod half_closed;
mod harness;
mod hosts;
mod http2;
mod limits;
mod operation;
mod operators;
mod priorities;
mod receiving;
mod rfcs;
mod slow_clients;
mod streams;
mod tls;
mod tools;
mod unix;
mod uploads;
