//! A matrix server over the ranks of an MPI job: rank 0 has the TCP front, and a large product is
//! spread over all ranks. A request has one of eight levels, which holds on every rank that it
//! touches.
//!
//! ```text
//!  client ─► front (rank 0) ─ small ─► one rank, in turn: product ─────────────► reply
//!                   └──────── large ─► blocks to all ranks, SUMMA, blocks back ─► reply
//! ```
//!
//! `wire` is the clients' protocol, `front` accepts them, `job` divides the work among the ranks,
//! `grid` arranges ranks and cuts matrices, `summa` is the spread product, `kernel` the arithmetic.

mod front;
mod grid;
mod job;
mod kernel;
mod summa;
pub mod wire;

pub use front::serve;
pub use job::{Levels, Matrices, SPREAD};
pub use kernel::multiply;
