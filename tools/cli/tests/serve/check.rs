//! Checks `upshift serve --check`, which tests whether a server would start.

use std::net::TcpListener;

use crate::harness::{Folder, Server, error, output};

/// Returns the exit code, standard output, and the lines of standard error.
fn check(folder: &Folder, args: &[&str]) -> (Option<i32>, String, Vec<String>) {
    let output = output(folder, &[&["--check"], args].concat());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let stderr_text = text(output.stderr).lines().map(str::to_owned).collect();
    (output.status.code(), text(output.stdout), stderr_text)
}

#[test]
fn a_valid_configuration_is_reported_with_one_warning_per_line() {
    let folder = Folder::new();
    let rules = "[[priority]]\nmethod = \"get\"\nlevel = 3\n";
    let config = folder.write("serve.toml", rules);
    let args = ["--config", &config, "--listen", "127.0.0.1:0"];
    let (code, out, stderr_text) = check(&folder, &args);
    assert_eq!((code, &*out), (Some(0), "valid\n"));
    assert_eq!(stderr_text.len(), 1, "{stderr_text:?}");
    assert!(
        stderr_text[0].starts_with("warning: priority get=3"),
        "{stderr_text:?}"
    );
}

#[test]
fn each_fault_has_a_line() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let text = format!(
        "listen = \"{address}\"\nroot = \"none\"\ntls = {{ certificate = \"c\", key = \"k\" }}\n"
    );
    let config = folder.write("serve.toml", &text);
    let (code, out, stderr_text) = check(&folder, &["--config", &config]);
    assert_eq!((code, &*out), (Some(1), ""));
    assert_eq!(stderr_text.len(), 3, "{stderr_text:?}");
    for (line, part) in stderr_text.iter().zip(["none", "certificate c", &*address]) {
        assert!(line.starts_with("error: ") && line.contains(part), "{line}");
    }
    let config = folder.write("serve.toml", "[[priority]]\nlevel = 99\n");
    let (code, _, stderr_text) = check(&folder, &["--config", &config]);
    assert_eq!(code, Some(1));
    let end =
        "serve.toml: line 2, column 9: 99: levels go from 0 (most urgent) to 63 (least urgent)";
    assert!(
        stderr_text.len() == 1 && stderr_text[0].ends_with(end),
        "{stderr_text:?}"
    );
}

#[test]
fn an_address_that_is_listed_twice_fails_the_check_as_it_fails_the_start() {
    let folder = Folder::new();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let address = address.unwrap().to_string();
    let port = address.rsplit(':').next().unwrap();
    let all = format!(":{port},plain");
    for (first, second) in [
        (&*address, &*address),
        (&address, port),
        (&all, &address),
        ("unix:a.sock", "unix:a.sock,mode=600"),
    ] {
        let listen = ["--listen", first, "--listen", second];
        let (code, out, stderr_text) = check(&folder, &listen);
        assert_eq!((code, &*out), (Some(1), ""), "{listen:?}");
        assert_eq!(stderr_text.len(), 1, "{stderr_text:?}");
        let end = format!("`listen` has {first} already, keep one of the two");
        assert!(stderr_text[0].ends_with(&end), "{stderr_text:?}");
        let stderr_text = error(&folder, &listen);
        assert!(stderr_text.contains("cannot listen on"), "{stderr_text}");
    }
}

#[test]
fn the_port_of_the_running_server_is_not_a_fault() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let address = server.address().to_string();
    let (code, _, stderr_text) = check(&folder, &["--listen", &address]);
    assert_eq!(code, Some(0), "{stderr_text:?}");
}
