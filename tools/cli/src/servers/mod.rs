//! `upshift matrix-server`, `plaintext-server` and `spin-server`: servers for measurements, on the
//! Upshift runtime.

mod args;
mod coroutine;
mod coroutine_matrix;
mod coroutine_plaintext;
mod coroutine_spin;
mod listening;
mod run;

pub(crate) use args::{SPIN_EXAMPLES, ServerArgs};
pub(crate) use run::{Service, serve};
