//! `upshift top`: shows a running process, or the whole machine.
//!
//! | module | concern |
//! |---|---|
//! | `args`, `run` | the flags; the requested view |
//! | `attach` | finds processes that can be observed, and sends requests over the socket |
//! | `figures` | rates, shares and percentiles, computed from two snapshots |
//! | `plain` | the figures as text, for `--once` |
//! | `record` | a timeline, for `--record` |
//! | `machine` | the census of `upshift daemon` |
//! | `screen` | the terminal, which is always restored |
//! | `settings` | settings that the keys change |
//! | `live` | the interactive view: time, keys, the current page |
//! | `draw`, `draw_machine` | the pages |

mod args;
mod attach;
mod draw;
mod draw_machine;
mod figures;
mod live;
mod machine;
mod plain;
mod record;
mod run;
mod screen;
mod settings;

pub(crate) use args::TopArgs;
pub(crate) use run::top;
