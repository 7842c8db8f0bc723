//! The server as its clients see it. Each check states the expected answer, and other projects'
//! tools repeat it where they can. A check whose tool is missing prints `skipped: `.

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
