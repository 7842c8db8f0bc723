//! `upshift serve`: runs the web server of the crate `upshift-serve`, and handles signals and
//! messages for its operator.

mod args;
mod run;

pub(crate) use args::{EXAMPLES, ServeArgs};
pub(crate) use run::serve;
