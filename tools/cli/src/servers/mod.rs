//! `upshift matrix-server`, `plaintext-server` and `spin-server`: the same services by coroutines and by threads.

mod args;
mod coroutine;
mod coroutine_matrix;
mod coroutine_plaintext;
mod coroutine_spin;
mod listening;
mod options;
mod run;
mod thread;

pub(crate) use args::{SPIN_EXAMPLES, ServerArgs};
pub(crate) use run::{Service, serve};
