//! `upshift serve`: the server of `upshift-serve`, with signals and messages for its operator.

mod args;
mod run;

pub(crate) use args::{EXAMPLES, ServeArgs};
pub(crate) use run::serve;
