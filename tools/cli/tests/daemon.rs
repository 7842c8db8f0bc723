//! `upshift daemon` as a user runs it: the messages of its start.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift");

/// A folder owned by the test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let name = format!("upshift-cli-daemon-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts a cooperative daemon, ends it once it listens, and returns its standard error.
fn said(socket: &Path, config: Option<&Path>) -> String {
    let mut command = Command::new(PROGRAM);
    command.args(["daemon", "--cooperative", "--socket"]);
    command.arg(socket);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let pid = child.id().to_string();
    let ended = Command::new("kill").args(["-s", "TERM", &pid]).status();
    assert!(ended.unwrap().success());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(line.starts_with("listening at"), "{line}{said}");
    said
}

#[test]
fn a_directory_that_is_made_for_the_socket_is_said() {
    let folder = Folder::new("made");
    let made = folder.0.join("run");
    let text = format!("made the directory {} for its socket", made.display());
    let socket = made.join("socket");
    assert!(said(&socket, None).contains(&text));
    assert!(!said(&socket, None).contains(&text));
}

#[test]
fn a_cooperative_daemon_says_once_that_it_assigns_no_level() {
    let folder = Folder::new("assign");
    let config = folder.0.join("daemon.toml");
    let text = "[[assign]]\nuser = \"root\"\ncomm = \"upshift-none\"\nlevel = 8\n";
    std::fs::write(&config, text).unwrap();
    let said = said(&folder.0.join("socket"), Some(&config));
    let lines = said.lines().filter(|line| line.contains("level"));
    assert_eq!(lines.count(), 1, "{said}");
}

#[test]
fn a_flag_that_starts_it_is_refused_with_the_command_that_does() {
    let output = Command::new(PROGRAM).args(["daemon", "--start"]).output();
    let output = output.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("unexpected argument '--start'"), "{said}");
    assert!(
        said.contains("`upshift daemon` starts the daemon"),
        "{said}"
    );
    assert!(!said.contains("--status"), "{said}");
}

#[test]
fn an_unknown_option_has_no_hint_to_pass_it_as_a_value() {
    let output = Command::new(PROGRAM).args(["serve", "--nokey"]).output();
    let output = output.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said.contains("unexpected argument '--nokey' found"),
        "{said}"
    );
    assert!(!said.contains("-- --nokey"), "{said}");
}
