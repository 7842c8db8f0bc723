//! Checks the output of a server at its start, and its errors.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::harness::{Folder, PROGRAM, Server, error, output};

#[test]
fn without_arguments_the_current_folder_is_served_and_the_address_printed() {
    let folder = Folder::new();
    folder.write("page.txt", "a page");
    let Some(server) = Server::try_start(&folder, &[]) else {
        // If another process has taken the port, the error names it.
        let stderr_text = folder.read("stderr");
        assert!(
            stderr_text.contains("cannot listen on 127.0.0.1:8080"),
            "{stderr_text}"
        );
        assert!(stderr_text.contains("holds the port"), "{stderr_text}");
        assert!(stderr_text.contains("--listen"), "{stderr_text}");
        return;
    };
    let root = folder.0.canonicalize().unwrap();
    let line = format!("serving {} on http://127.0.0.1:8080\n", root.display());
    assert_eq!(server.announced, line);
    let answer = server.get("/page.txt", "");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("a page"), "{answer}");
    server.signal("TERM");
    let (status, rest) = server.end();
    assert_eq!(status, Some(0));
    assert!(rest.starts_with("built in: /healthz /metrics"), "{rest}");
}

#[test]
fn a_port_that_is_taken_is_an_error_that_names_its_holder() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stderr_text = error(&folder, &["--listen", &address, "--vcpus", "1"]);
    for part in [
        &*address,
        &format!("process {}", std::process::id()),
        "choose another port with --listen",
    ] {
        assert!(stderr_text.contains(part), "{part} in {stderr_text}");
    }
}

#[test]
fn help_shows_priorities_and_examples() {
    let folder = Folder::new();
    let output = output(&folder, &["--help"]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    // Lines are wrapped at the width of the terminal.
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "[default: 127.0.0.1:8080]",
        "--priority",
        "--preempt",
        "[default: on]",
        "--board",
        "the first matching --priority rule",
        "upshift serve site --listen :80",
        "SIGHUP",
    ] {
        assert!(help.contains(part), "{part} in {help}");
    }
}

#[test]
fn mistakes_are_refused_with_a_remedy() {
    let folder = Folder::new();
    let misspelt = folder.write("misspelt.toml", "lissen = []\n");
    let level = folder.write("level.toml", "[[priority]]\npath = \"/a\"\nlevel = 64\n");
    let twice = "[[site]]\nhosts = [\"a.test\"]\n".repeat(2);
    let hosts = folder.write("hosts.toml", &twice);
    let listen = ["--listen", "127.0.0.1:0"];
    for (args, parts) in [
        (
            &["--config", "none.toml"][..],
            &["none.toml", "No such file"][..],
        ),
        (
            &["--config", &misspelt],
            &["misspelt.toml", "unknown field `lissen`", "line 1"],
        ),
        (
            &["--config", &level],
            &["level.toml: line 3, column 9", "0 (most urgent) to 63"],
        ),
        (&["no-folder"], &["no-folder", "No such file"]),
        (
            &["--config", &hosts],
            &["hosts.toml", "host `a.test`: both site 1 and site 2"],
        ),
        (&["--priority", "/a"], &["CONDITIONS=LEVEL"]),
        (&["--endpoints", "status"], &["use healthz, metrics"]),
        (&["--tls-certificate", "cert.pem"], &["--tls-key"]),
        (
            &["--tls-certificate", "cert.pem", "--tls-key", "key.pem"],
            &["cert.pem", "No such file"],
        ),
        (&["--ask", "status"], &["--control"]),
        (
            &["--control", "nobody", "--ask", "status"],
            &["no server answers on nobody"],
        ),
        (&["--board", "required"], &["upshift daemon"]),
    ] {
        let stderr_text = error(&folder, &[&listen, args].concat());
        for part in parts {
            assert!(
                stderr_text.contains(part),
                "{args:?}: {part} in {stderr_text}"
            );
        }
    }
}

#[test]
fn sockets_of_an_ancestor_are_not_used() {
    let folder = Folder::new();
    let start = |pid: &str| {
        let script = format!("{pid} export LISTEN_FDS=1; exec \"$@\" 3</dev/null");
        let mut command = Command::new("sh");
        command
            .args(["-c", &script, "sh", PROGRAM, "serve"])
            .args(["--listen", "127.0.0.1:0", "--vcpus", "1"])
            .current_dir(&folder.0)
            .env("UPSHIFT_DAEMON_SOCKET", folder.0.join("daemon"))
            .env_remove("LISTEN_PID")
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(folder.0.join("stderr")).unwrap());
        Server::launch(&mut command)
    };
    assert!(start("").is_some(), "{}", folder.read("stderr"));
    assert!(start("export LISTEN_PID=$$;").is_none());
    let stderr_text = folder.read("stderr");
    assert!(
        stderr_text.contains("descriptor 3, which was handed over, is no socket"),
        "{stderr_text}"
    );
}

#[test]
fn the_port_of_a_killed_holder_is_awaited() {
    let folder = Folder::new();
    for _ in 0..5 {
        let mut first = Server::start(&folder, &[]);
        let address = first.address().to_string();
        assert!(first.get("/healthz", "").ends_with("ok\n"));
        first.child.kill().unwrap();
        first.child.wait().unwrap();
        let args = ["--listen", &address, "--vcpus", "1"];
        let second = Server::try_start(&folder, &args);
        assert!(second.is_some(), "{}", folder.read("stderr"));
    }
}
