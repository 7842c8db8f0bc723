//! Flags of `upshift doctor`.

use clap::Args;

/// Flags of `upshift doctor`.
#[derive(Debug, Args)]
#[command(
    after_help = "Each line reports a feature that works (ok), works with restrictions (note) or does not work (no),
and what to change.

The exit code is 1 if the runtime cannot work here at all, with neither io_uring nor epoll. All
other features are optional.

Examples:
  upshift doctor
  upshift doctor --json"
)]
pub(crate) struct DoctorArgs {
    /// Print JSON instead of lines
    #[arg(long)]
    pub(super) json: bool,
}
