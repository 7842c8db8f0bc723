//! Writes the man pages and the completions.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use super::args::DocumentsArgs;
use crate::args::Cli;

pub(crate) fn documents(args: &DocumentsArgs) -> Result<()> {
    let man = args.directory.join("man1");
    let completions = args.directory.join("completions");
    for directory in [&man, &completions] {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let mut cli = visible_command();
    // The page of `help` would repeat the other pages.
    let main = cli.clone().disable_help_subcommand(true);
    page(main, "upshift", &man)?;
    for command in cli.get_subcommands() {
        let command_line = format!("upshift {}", command.get_name());
        page(command.clone(), &command_line, &man)?;
    }
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

/// Returns the command line without hidden commands and flags.
fn visible_command() -> clap::Command {
    let cli = Cli::command();
    let shown = cli
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let bare = clap::Command::new("upshift").version(env!("CARGO_PKG_VERSION"));
    let mut bare = bare.subcommands(shown.cloned());
    if let Some(about) = cli.get_about() {
        bare = bare.about(about.clone());
    }
    if let Some(after) = cli.get_after_help() {
        bare = bare.after_help(after.clone());
    }
    bare.args(cli.get_arguments())
}

/// Writes the page of a command; `command_line` is the command as users type it.
fn page(command: clap::Command, command_line: &str, man: &Path) -> Result<()> {
    let name = command_line.replace(' ', "-");
    let path = man.join(format!("{name}.1"));
    // Clap requires a `'static` name; the leak is harmless in a short-lived program.
    let title: &'static str = Box::leak(name.into_boxed_str());
    let command = command.name(title).bin_name(command_line);
    let mut text = Vec::new();
    let page = clap_mangen::Man::new(command);
    let page = page.source(concat!("upshift ", env!("CARGO_PKG_VERSION")));
    page.manual("Upshift").render(&mut text)?;
    write(&path, &text)
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_page_and_completions() {
        let directory =
            std::env::temp_dir().join(format!("upshift-documents-{}", std::process::id()));
        let args = DocumentsArgs {
            directory: directory.clone(),
        };
        documents(&args).unwrap();
        let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
        let daemon = read("man1/upshift-daemon.1");
        assert!(daemon.contains("\\-\\-config") && daemon.contains("\\fBupshift daemon\\fR"));
        let main = read("man1/upshift.1");
        assert!(main.contains("sched") && !main.contains("spawn\\-test"));
        // Every page that the main page names exists.
        for line in main.lines().filter_map(|line| line.strip_suffix("(1)")) {
            let page = line.replace('\\', "");
            assert!(directory.join(format!("man1/{page}.1")).exists(), "{page}");
        }
        for name in ["upshift", "_upshift", "upshift.fish"] {
            let text = read(&format!("completions/{name}"));
            assert!(text.contains("daemon") && !text.contains("spawn-test"));
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
