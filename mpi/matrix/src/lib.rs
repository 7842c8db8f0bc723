//! Serves matrix products on the ranks of an MPI job. Rank 0 accepts the TCP clients, and a large
//! product is computed on all ranks together. A request has one of eight levels of urgency, which
//! applies on every rank that works on the request.
//!
//! ```text
//!  client ─► front (rank 0) ─ small ─► one rank, in turn: product ─────────────► reply
//!                   └──────── large ─► blocks to all ranks, SUMMA, blocks back ─► reply
//! ```
//!
//! `wire` is the clients' protocol, `front` accepts clients, `job` divides the work among the
//! ranks, `grid` arranges ranks and divides matrices, `summa` computes a product on all ranks, and
//! `kernel` multiplies on one rank.

mod front;
mod grid;
mod job;
mod kernel;
mod summa;
pub mod wire;

pub use front::serve;
pub use job::{Levels, Matrices, SPREAD};
pub use kernel::multiply;
