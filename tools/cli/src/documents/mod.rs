//! `upshift documents`, a hidden command: writes man pages and completions from the definition of
//! the command line. `cargo xtask package deb` calls it.

mod args;
mod run;

pub(crate) use args::DocumentsArgs;
pub(crate) use run::documents;
