//! Runs `upshift daemon` as a user does, and checks the messages at its start and the errors of
//! unknown flags.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift");

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
fn stderr_text(socket: &Path, config: Option<&Path>) -> String {
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
    let stderr_text = String::from_utf8(output.stderr).unwrap();
    assert!(line.starts_with("listening at"), "{line}{stderr_text}");
    stderr_text
}

#[test]
fn a_directory_created_for_the_socket_is_reported() {
    let folder = Folder::new("made");
    let made = folder.0.join("run");
    let text = format!("made the directory {} for its socket", made.display());
    let socket = made.join("socket");
    assert!(stderr_text(&socket, None).contains(&text));
    assert!(!stderr_text(&socket, None).contains(&text));
}

#[test]
fn a_cooperative_daemon_reports_once_that_it_assigns_no_level() {
    let folder = Folder::new("assign");
    let config = folder.0.join("daemon.toml");
    let text = "[[assign]]\nuser = \"root\"\ncomm = \"upshift-none\"\nlevel = 8\n";
    std::fs::write(&config, text).unwrap();
    let stderr_text = stderr_text(&folder.0.join("socket"), Some(&config));
    let lines = stderr_text.lines().filter(|line| line.contains("level"));
    assert_eq!(lines.count(), 1, "{stderr_text}");
}

#[test]
fn a_flag_to_start_the_daemon_is_refused_with_the_command_that_starts_it() {
    let output = Command::new(PROGRAM).args(["daemon", "--start"]).output();
    let output = output.unwrap();
    let stderr_text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr_text.contains("unexpected argument '--start'"),
        "{stderr_text}"
    );
    assert!(
        stderr_text.contains("`upshift daemon` starts the daemon"),
        "{stderr_text}"
    );
    assert!(!stderr_text.contains("--status"), "{stderr_text}");
}

#[test]
fn an_unknown_option_has_no_hint_to_pass_it_as_a_value() {
    let output = Command::new(PROGRAM).args(["serve", "--nokey"]).output();
    let output = output.unwrap();
    let stderr_text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr_text.contains("unexpected argument '--nokey' found"),
        "{stderr_text}"
    );
    assert!(!stderr_text.contains("-- --nokey"), "{stderr_text}");
}
