//! `upshift documents`, hidden: man pages and completions, from the definition of the command line itself. `cargo xtask package` calls it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;

/// Flags of `upshift documents`.
#[derive(Debug, Args)]
pub(crate) struct DocumentsArgs {
    /// Write them below this directory
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

/// Writes `man1/upshift*.1` and `completions/`.
pub(crate) fn documents(args: &DocumentsArgs) -> Result<()> {
    let man = args.directory.join("man1");
    let completions = args.directory.join("completions");
    for directory in [&man, &completions] {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let cli = Cli::command();
    page(cli.clone(), "upshift".to_string(), &man)?;
    for command in cli.get_subcommands().filter(|it| !it.is_hide_set()) {
        let name = format!("upshift-{}", command.get_name());
        page(command.clone(), name, &man)?;
    }
    let mut cli = cli;
    for (shell, name) in [
        (Shell::Bash, "upshift"),
        (Shell::Zsh, "_upshift"),
        (Shell::Fish, "upshift.fish"),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut cli, "upshift", &mut text);
        write(&completions.join(name), &text)?;
    }
    Ok(())
}

fn page(command: clap::Command, name: String, man: &Path) -> Result<()> {
    let path = man.join(format!("{name}.1"));
    // Clap wants a name that lives for ever; this program does not live long.
    let title: &'static str = Box::leak(name.into_boxed_str());
    let mut text = Vec::new();
    clap_mangen::Man::new(command.name(title)).render(&mut text)?;
    write(&path, &text)
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let directory =
            std::env::temp_dir().join(format!("upshift-documents-{}", std::process::id()));
        let args = DocumentsArgs {
            directory: directory.clone(),
        };
        documents(&args).unwrap();
        let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
        assert!(read("man1/upshift-daemon.1").contains("\\-\\-config"));
        let main = read("man1/upshift.1");
        assert!(main.contains("sched") && !main.contains("spawn\\-test"));
        for name in ["upshift", "_upshift", "upshift.fish"] {
            assert!(read(&format!("completions/{name}")).contains("daemon"));
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
