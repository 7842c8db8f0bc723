//! Flags of the hidden `upshift documents`.

use std::path::PathBuf;

use clap::Args;

/// Flags of `upshift documents`.
#[derive(Debug, Args)]
pub(crate) struct DocumentsArgs {
    /// Folder to write to
    #[arg(value_name = "DIRECTORY")]
    pub(super) directory: PathBuf,
}
