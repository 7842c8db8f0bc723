//! What it prints when it starts, and its errors.

use std::net::TcpListener;

use crate::harness::{Folder, Server, error, output};

#[test]
fn without_arguments_it_serves_the_current_folder_and_says_where() {
    let folder = Folder::new();
    folder.write("page.txt", "a page");
    let Some(server) = Server::try_start(&folder, &[]) else {
        // Another process has the port: then the error says which.
        let said = folder.read("stderr");
        assert!(said.contains("cannot listen on 127.0.0.1:8080"), "{said}");
        assert!(said.contains("holds the port"), "{said}");
        assert!(said.contains("--listen"), "{said}");
        return;
    };
    let place = folder.0.canonicalize().unwrap();
    let line = format!("serving {} on http://127.0.0.1:8080\n", place.display());
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
fn a_port_that_is_taken_is_an_error_that_says_who_holds_it() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = error(&folder, &["--listen", &address, "--vcpus", "1"]);
    for part in [
        &*address,
        &format!("process {}", std::process::id()),
        "choose another port with --listen",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn help_shows_priorities_and_examples() {
    let folder = Folder::new();
    let output = output(&folder, &["--help"]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    for part in [
        "[default: 127.0.0.1:8080]",
        "--priority",
        "--preempt",
        "--board",
        "the first matching --priority rule",
        "upshift serve site --listen 0.0.0.0:80",
        "SIGHUP",
    ] {
        assert!(help.contains(part), "{part} in {help}");
    }
}

#[test]
fn mistakes_say_what_to_do() {
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
        (&["--config", &level], &["level.toml", "not a level"]),
        (&["no-folder"], &["no-folder", "No such file"]),
        (
            &["--config", &hosts],
            &["hosts.toml", "host `a.test`: site 1 and site 2"],
        ),
        (&["--priority", "/a"], &["CONDITIONS=LEVEL"]),
        (&["--endpoints", "status"], &["use healthz, metrics"]),
        (&["--tls-cert", "cert.pem"], &["--tls-key"]),
        (
            &["--tls-cert", "cert.pem", "--tls-key", "key.pem"],
            &["cert.pem", "No such file"],
        ),
        (&["--ask", "status"], &["--control"]),
        (
            &["--control", "nobody", "--ask", "status"],
            &["no server answers on nobody"],
        ),
        (&["--board", "required"], &["upshift daemon"]),
    ] {
        let said = error(&folder, &[&listen, args].concat());
        for part in parts {
            assert!(said.contains(part), "{args:?}: {part} in {said}");
        }
    }
}
