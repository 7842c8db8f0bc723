//! `upshift top`: looks at a running process, or at the whole machine.
//!
//! | module | concern |
//! |---|---|
//! | `args`, `run` | the flags; which view they ask for |
//! | `attach` | which processes can be looked at; asking over the socket |
//! | `figures` | two snapshots become rates, shares and percentiles |
//! | `plain` | these as text, for `--once` |
//! | `record` | a timeline, for `--record` |
//! | `machine` | the census of `upshift daemon` |
//! | `screen` | the terminal: taken, and given back whatever happens |
//! | `settings` | what the keys change |
//! | `live` | keys, time, which page is shown |
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
