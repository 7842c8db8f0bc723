//! Helpers that the steps share.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::setup;
use crate::step::{Context, Done, Verdict};

/// Arguments with which a passing test shows its output, because the suite counts the lines
/// `skipped: REASON` in it.
pub(super) const SHOW_SKIPS: [&str; 2] = ["--", "--show-output"];

/// Ends the step as skipped when a tool is missing.
macro_rules! need {
    ($context:expr, $($tool:expr),+) => {
        $(if !$context.tools.has($tool) {
            return Ok(Done::Skipped($tool.absence()));
        })+
    };
}
pub(super) use need;

pub(super) fn cargo<'a>(context: &Context<'_>, args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = setup::cargo(context.root);
    command.args(args);
    command
}

pub(super) fn passed() -> Verdict {
    Ok(Done::Passed(String::new()))
}

pub(super) fn join_errors(
    results: impl IntoIterator<Item = Result<(), String>>,
) -> Result<(), String> {
    let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors.join("; "))
    }
}

/// Sets a variable for the command unless the user has set it.
pub(super) fn default_env(command: &mut Command, name: &str, value: &str) {
    if std::env::var_os(name).is_none() {
        command.env(name, value);
    }
}

/// Returns the files *.rs of a folder, sorted; none if the folder does not exist.
pub(super) fn rust_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    Ok(files)
}

pub(super) fn stem(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
