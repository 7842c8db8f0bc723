//! Tests of the server through its sockets. Each states the expected response, and where another
//! project has a tool for it, that tool repeats the check. A check whose tool is missing prints
//! `skipped: `.

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
