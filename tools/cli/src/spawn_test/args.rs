//! Flags of the hidden `upshift spawn-test`.

use clap::Args;

use crate::choice::Model;
use crate::values;

/// Flags of the hidden `upshift spawn-test`.
#[derive(Debug, Args)]
pub(crate) struct SpawnTestArgs {
    /// How many to spawn
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = values::count)]
    pub(crate) count: usize,
    /// What to spawn: coroutine or thread
    #[arg(
        long,
        value_enum,
        default_value = "coroutine",
        hide_possible_values = true
    )]
    pub(crate) model: Model,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}
