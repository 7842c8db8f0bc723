//! Tests of the operator's settings: redirects, header fields, the fallback file, plain addresses
//! beside TLS, the access log, and the check of a configuration.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use upshift_serve::{Config, Redirect, Server};

use crate::harness::{Answer, Folder, TestServer, wait_until};
use crate::tls::{certificate, curl};

fn redirect(from: &str, to: &str) -> Redirect {
    Redirect {
        from: from.into(),
        to: to.into(),
    }
}

fn ask_unix(socket: &Path, head: &str) -> Answer {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = format!("{head}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    Answer::parse(answer)
}

#[test]
fn a_plain_address_beside_tls_redirects_to_https() {
    let folder = Folder::new();
    let tls = certificate(&folder, "cert", &["first.test"]);
    folder.write("root/page.txt", "a page");
    let (files, socket) = (tls.clone(), folder.0.join("socket"));
    let plain = format!("unix:{},plain", socket.display());
    let server = TestServer::with_config(&folder.0.join("root"), |config| {
        config.tls = Some(files);
        config.listen.push(plain.parse().unwrap());
        config.redirect = vec![redirect("http://", "https://")];
    });
    let answer = ask_unix(
        &socket,
        "POST /page.txt?x=1 HTTP/1.1\r\nhost: first.test:80\r\n",
    );
    assert_eq!(answer.status, 308);
    let location = Some("https://first.test/page.txt?x=1");
    assert_eq!(answer.header("location"), location);
    // Endpoints are served on every address. A request without a host has no target for a redirect.
    let answer = ask_unix(&socket, "GET /healthz HTTP/1.1\r\nhost: first.test\r\n");
    assert_eq!(answer.status, 200);
    let answer = ask_unix(&socket, "GET /page.txt HTTP/1.0\r\n");
    assert_eq!(answer.status, 200);
    // The TLS address serves the file, and refuses plain HTTP.
    if let Some(output) = curl(&server, &tls.certificate, "first.test", &[], "/page.txt") {
        assert_eq!(output.stdout, b"a page");
    }
    assert_eq!(server.get("/page.txt", "").status, 400);
}

#[test]
fn redirects_take_precedence_over_files_and_services() {
    let folder = Folder::new();
    folder.write("old/page.txt", "a page");
    let set_redirect = |config: &mut Config| config.redirect = vec![redirect("/old", "/new")];
    let app = axum::Router::new().fallback(|| async { "the service" });
    for server in [
        TestServer::with_config(&folder.0, set_redirect),
        TestServer::with_service(&folder, set_redirect, app),
    ] {
        let answer = server.get("/old/page.txt?x", "");
        assert_eq!(answer.status, 308, "{}", answer.head);
        assert_eq!(answer.header("location"), Some("/new/page.txt?x"));
        assert_ne!(server.get("/older", "").status, 308);
    }
}

#[test]
fn header_fields_are_added_to_every_response_that_lacks_them() {
    let folder = Folder::new();
    folder.write("page.txt", "a page");
    folder.write("site/page.txt", "another");
    let site = format!(
        "[headers]\nx-a = \"1\"\nallow = \"nothing\"\n\
         [[site]]\nhosts = [\"b.test\"]\nroot = \"{}\"\nheaders = {{ x-b = \"2\" }}",
        folder.0.join("site").display()
    );
    let parsed = Config::parse(&site).unwrap();
    let server = TestServer::with_config(&folder.0, |config| {
        config.headers = parsed.headers;
        config.site = parsed.site;
    });
    for (path, status) in [("/page.txt", 200), ("/none", 404), ("/healthz", 200)] {
        let answer = server.get(path, "");
        assert_eq!((answer.status, answer.header("x-a")), (status, Some("1")));
    }
    let answer = server.ask("POST", "/page.txt", "");
    assert_eq!(answer.status, 405);
    assert_eq!(answer.header("allow"), Some("GET, HEAD"));
    let answer = server.exchange("GET /page.txt HTTP/1.0\r\nhost: b.test\r\n\r\n");
    assert!(answer.contains("x-b: 2\r\n"), "{answer}");
    assert!(!answer.contains("x-a"), "{answer}");
}

#[test]
fn a_path_without_a_file_gets_the_fallback() {
    let folder = Folder::new();
    folder.write("app.html", "the application");
    folder.write("page.txt", "a page");
    folder.write("folder/x", "");
    folder.write(".hidden", "");
    let server = TestServer::with_config(&folder.0, |config| {
        config.files.fallback = Some("app.html".into());
        config.files.listing = false;
    });
    for path in ["/users/7", "/page.txt/", "/folder/", "/none?x"] {
        let answer = server.get(path, "");
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.text(), "the application", "{path}");
        let kind = answer.header("content-type");
        assert_eq!(kind, Some("text/html; charset=utf-8"));
    }
    assert_eq!(server.get("/page.txt", "").text(), "a page");
    assert_eq!(server.get("/.hidden", "").status, 404);
    assert_eq!(server.get("/..%2fx", "").status, 400);
    assert_eq!(server.ask("POST", "/users/7", "").status, 405);
    std::fs::remove_file(folder.0.join("app.html")).unwrap();
    wait_until("the fallback is gone", || {
        server.get("/users/7", "").status == 404
    });
}

#[test]
fn the_access_log_has_referer_and_user_agent() {
    let folder = Folder::new();
    let log = folder.0.join("log");
    let path = log.clone();
    let server = TestServer::with_config(&folder.0, |config| config.access_log = Some(path));
    server.get(
        "/a",
        "referer: http://a.test/\r\nuser-agent: one \"two\"\r\n",
    );
    server.get("/b", "");
    server.end();
    let text = std::fs::read_to_string(log).unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["referer"], "http://a.test/");
    assert_eq!(lines[0]["user_agent"], "one \"two\"");
    assert!(lines[1].get("user_agent").is_none(), "{text}");
}

#[test]
fn the_examples_in_the_documentation_are_valid() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/serve.md");
    let Ok(text) = std::fs::read_to_string(page) else {
        println!("skipped: docs/serve.md is not in the package");
        return;
    };
    let examples = text.split("```toml\n").skip(1);
    for example in examples.filter_map(|rest| rest.split("```").next()) {
        if let Err(error) = Config::parse(example) {
            panic!("{error}\n{example}");
        }
    }
}

#[test]
fn a_check_names_each_fault_and_creates_no_file() {
    let folder = Folder::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut config = Config {
        listen: vec![address.into(), "unix:none/socket".parse().unwrap()],
        root: folder.0.join("no-folder"),
        access_log: Some(folder.0.join("none/log")),
        control: Some(folder.write("file", "")),
        ..Config::default()
    };
    let report = Server::check(&config).unwrap_err();
    let lines: Vec<_> = report.lines().collect();
    for part in [
        "no-folder",
        "listens there already",
        "unix:none/socket: no file can be made in",
        "access log",
        "control",
    ] {
        assert!(lines.iter().any(|line| line.contains(part)), "{report}");
    }
    assert_eq!(lines.len(), 5, "{report}");
    drop(listener);
    config.listen = vec![address.into()];
    config.root = folder.0.clone();
    config.access_log = Some(folder.0.join("log"));
    config.control = Some(folder.0.join("control"));
    config.files.fallback = Some("app.html".into());
    config.priority = vec!["GTE /a=3".parse().unwrap()];
    let warnings = Server::check(&config).unwrap();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
    // The check has not bound the port.
    std::net::TcpListener::bind(address).unwrap();
}

#[test]
fn the_thread_of_the_control_socket_ends_with_the_server() {
    let folder = Folder::new();
    let socket = folder.0.join("control.sock");
    let server = TestServer::with_config(&folder.0, |config| {
        config.control = Some(socket.clone());
    });
    assert!(upshift_serve::ask(&socket, "status").is_ok());
    // The handle of an operator outlives the server.
    let control = server.control.clone();
    drop(server);
    // No other test of this program has a control socket.
    let is_control_thread = |task: std::io::Result<std::fs::DirEntry>| {
        let name = task.and_then(|task| std::fs::read_to_string(task.path().join("comm")));
        name.is_ok_and(|name| name.trim_end() == "control")
    };
    wait_until("the thread of the control socket has ended", || {
        let mut tasks = std::fs::read_dir("/proc/self/task").unwrap();
        !tasks.any(is_control_thread)
    });
    drop(control);
}
