//! Tests of the server through its sockets. Each test states the expected response. If another
//! project has a tool for such a check, a test also runs the tool. A test whose tool is missing
//! prints `skipped: `.

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
