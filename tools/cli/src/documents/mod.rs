//! `upshift documents`, hidden: man pages and completions, from the definition of the command
//! line itself. `cargo xtask package deb` calls it.

mod args;
mod run;

pub(crate) use args::DocumentsArgs;
pub(crate) use run::documents;
