//! Checks that SIGHUP reloads the configuration, and checks the contents of the logs.

use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Folder, PROGRAM, Server, read_all, wait_until};

/// Returns the paths and levels of the complete log lines.
fn logged(folder: &Folder) -> Vec<(String, u64)> {
    let log = folder.read("access.jsonl");
    log.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).expect(line);
            assert!(record["took_ms"].as_f64().unwrap() >= 0.0);
            let path = record["path"].as_str().unwrap().to_owned();
            (path, record["level"].as_u64().unwrap())
        })
        .collect()
}

#[test]
fn sighup_reloads_the_file_and_keeps_the_old_settings_if_the_file_is_invalid() {
    let folder = Folder::new();
    let rule = |level: u8| {
        let rule = format!("[[priority]]\npath = \"/a\"\nlevel = {level}\n");
        folder.write("serve.toml", &rule)
    };
    let config = rule(8);
    let server = Server::start(
        &folder,
        &["--config", &config, "--access-log", "access.jsonl"],
    );
    let mut requests = 0;
    let mut level_of_a = || {
        server.get("/a", "priority: u=1\r\n");
        requests += 1;
        wait_until("a line of the log", || logged(&folder).len() == requests);
        logged(&folder)[requests - 1].clone()
    };
    assert_eq!(level_of_a(), ("/a".into(), 8));
    rule(9);
    server.signal("HUP");
    wait_until("the reload", || {
        folder.read("stderr").contains("reloaded; 0")
    });
    assert_eq!(level_of_a(), ("/a".into(), 9));
    rule(64);
    server.signal("HUP");
    wait_until("the refusal", || {
        folder
            .read("stderr")
            .contains("not reloaded, the old settings stay")
    });
    assert_eq!(level_of_a(), ("/a".into(), 9));
}

#[test]
fn hosts_have_their_sites_and_a_reload_changes_their_folders() {
    let folder = Folder::new();
    std::fs::create_dir(folder.0.join("a")).unwrap();
    folder.write("who.txt", "rest");
    folder.write("a/who.txt", "a");
    let site = "[[site]]\nhosts = [\"a.test\", \"*.a.test\"]\nroot = \"a\"\n";
    let config = folder.write("serve.toml", site);
    let mut server = Server::start(&folder, &["--config", &config]);
    let mut line = String::new();
    server.output.read_line(&mut line).unwrap();
    assert!(line.ends_with("/a for a.test, *.a.test\n"), "{line}");
    let who = |host: &str| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let head = format!("GET /who.txt HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        read_all(stream)
    };
    assert!(who("www.a.test").ends_with("\r\n\r\na"));
    assert!(who("b.test").ends_with("\r\n\r\nrest"));
    folder.write("serve.toml", &format!("root = \"a\"\n{site}"));
    server.signal("HUP");
    wait_until("the reload", || folder.read("stderr").contains("reloaded"));
    assert!(who("b.test").ends_with("\r\n\r\na"));
}

#[test]
fn the_access_log_may_be_the_standard_output() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--access-log", "-", "--endpoints", "healthz"]);
    server.get("/healthz?a=b", "");
    server.signal("TERM");
    let (status, rest) = server.end();
    assert_eq!(status, Some(0));
    let line = rest
        .lines()
        .find(|line| line.starts_with('{'))
        .expect(&rest);
    let record: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(record["path"], "/healthz");
    assert_eq!(record["query"], "a=b");
    assert_eq!(record["status"], 200);
}

#[test]
fn a_closed_standard_error_does_not_end_the_server() {
    let folder = Folder::new();
    folder.write("page.txt", "a page");
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\"", PROGRAM, "serve"])
        .args(["--listen", "127.0.0.1:0", "--vcpus", "1"])
        .current_dir(&folder.0)
        .stderr(Stdio::piped());
    let server = Server::launch(&mut limited).unwrap();
    let assert_contains = |path: &str, part: &str| {
        let answer = server.get(path, "");
        assert!(answer.contains(part), "{answer}");
    };
    assert_contains("/page.txt", "a page");
    // There are more connections than the server has descriptors. It cannot accept them all, and
    // cannot report that either.
    let many: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(server.address()).unwrap())
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    drop(many);
    // While the closed connections are still open at the server, a new connection exceeds the
    // limit of the server.
    wait_until("a page", || {
        let mut answer = String::new();
        let read = server.send("/page.txt", "").read_to_string(&mut answer);
        read.is_ok() && answer.contains("a page")
    });
    // The messages about a reload and about the end fail, too.
    server.signal("HUP");
    assert_contains("/page.txt", "a page");
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn sighup_reopens_the_log_and_names_settings_that_need_a_restart() {
    let folder = Folder::new();
    let config = folder.write("serve.toml", "receive-level = 3\n");
    let args = ["--config", &config, "--access-log", "access.jsonl"];
    let server = Server::start(&folder, &args);
    server.get("/a", "");
    wait_until("a line of the log", || logged(&folder).len() == 1);
    std::fs::rename(folder.0.join("access.jsonl"), folder.0.join("old.jsonl")).unwrap();
    folder.write("serve.toml", "receive-level = 1\ncontrol = \"x\"\n");
    server.signal("HUP");
    let stderr_part = "applied only after a restart: receive-level, control";
    wait_until("the reload", || folder.read("stderr").contains(stderr_part));
    server.get("/b", "");
    wait_until("a line of the new log", || logged(&folder).len() == 1);
    assert_eq!(logged(&folder)[0].0, "/b");
    assert_eq!(folder.read("old.jsonl").lines().count(), 1);
}

#[test]
fn a_log_on_a_full_disk_is_reported_and_does_not_end_the_server() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--access-log", "/dev/full"]);
    wait_until("the complaint", || {
        server.get("/plaintext", "");
        folder.read("stderr").contains("access log: ")
    });
    assert!(server.get("/plaintext", "").contains("Hello"));
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
}
