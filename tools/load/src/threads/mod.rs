//! Reference servers with threads: what a coroutine server is compared with.
//!
//! [`MatrixServer`] runs three threads per connection, as the matrix server of the SharedScheduler papers does;
//! [`PlaintextServer`] and [`SpinServer`] one. They accept on the thread that calls `serve` and end within about 2 s of
//! `stop` being true: all sockets are shut down, which wakes every thread out of its system call, and the threads are
//! waited for. A thread in the middle of a long product or burn ends after it.
//!
//! Each thread has a stack of 128 KiB, of which only what is touched takes memory. Running out of descriptors or
//! threads costs connections, never the server.

mod accept;
mod matrix;
mod plaintext;
mod spin;

pub use matrix::MatrixServer;
pub use plaintext::PlaintextServer;
pub use spin::SpinServer;
