//! `upshift serve`: the server of `upshift-serve`, with signals and words for a person.

mod args;
mod run;

pub(crate) use args::{EXAMPLES, ServeArgs};
pub(crate) use run::serve;
