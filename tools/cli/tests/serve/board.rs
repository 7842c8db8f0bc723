//! Runs servers that join the machine's daemon.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::{Folder, PROGRAM, Server, command, wait_until};

#[test]
fn with_board_auto_a_server_serves_without_a_daemon_and_joins_a_later_daemon() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--board", "auto"]);
    assert!(server.get("/healthz", "").contains("ok"));
    let daemon = Command::new(PROGRAM)
        .args(["daemon", "--cooperative", "--socket"])
        .arg(folder.0.join("daemon"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let daemon = Daemon(daemon);
    wait_until("the registration", || {
        registered(&folder).contains(&server.child.id())
    });
    assert!(server.get("/healthz", "").contains("ok"));
    drop(daemon);
    assert!(server.get("/healthz", "").contains("ok"));
}

#[test]
fn with_board_auto_a_server_reports_a_missing_daemon() {
    if Path::new("/run/upshift/daemon.sock").exists() {
        println!("skipped: this machine has a daemon");
        return;
    }
    let folder = Folder::new();
    let args = ["--board", "auto", "--listen", "127.0.0.1:0", "--vcpus", "1"];
    let mut command = command(&folder, &args);
    command
        .env_remove("UPSHIFT_DAEMON_SOCKET")
        .env("XDG_RUNTIME_DIR", &folder.0)
        .stderr(std::fs::File::create(folder.0.join("stderr")).unwrap());
    let server = Server::launch(&mut command).unwrap();
    assert!(server.get("/healthz", "").contains("ok"));
    let stderr_text = folder.read("stderr");
    assert!(
        stderr_text.contains("--board auto: there is no daemon"),
        "{stderr_text}"
    );
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the processes registered with the daemon of this folder.
fn registered(folder: &Folder) -> Vec<u32> {
    let output = Command::new(PROGRAM)
        .args(["daemon", "--status"])
        .env("UPSHIFT_DAEMON_SOCKET", folder.0.join("daemon"))
        .output()
        .unwrap();
    let Ok(census) = serde_json::from_slice::<serde_json::Value>(&output.stdout) else {
        return Vec::new();
    };
    let processes = census["processes"].as_array().unwrap().iter();
    processes
        .map(|process| process["pid"].as_u64().unwrap() as u32)
        .collect()
}
