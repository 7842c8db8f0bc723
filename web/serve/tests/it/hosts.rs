//! Tests of virtual hosts: which site serves a request, which certificate a client gets, and which
//! hosts are invalid.

use std::io::Write;
use std::path::Path;

use upshift_serve::{Config, Files, Site, TlsFiles};

use crate::harness::{Folder, TestServer, output_text, tool};
use crate::http2::{Frame, HEADERS, connect_http2, get};
use crate::tls::{certificate, curl};

/// Creates folders `rest` (the default site), `a` and `b` with a `who.txt` each.
fn folders() -> Folder {
    let folder = Folder::new();
    for name in ["rest", "a", "b"] {
        folder.write(&format!("{name}/who.txt"), name);
    }
    folder
}

fn site(folder: &Folder, hosts: &[&str], root: &str) -> Site {
    Site {
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        root: Some(folder.0.join(root)),
        ..Site::default()
    }
}

fn server(folder: &Folder, change: impl FnOnce(&mut Config)) -> TestServer {
    TestServer::with_config(&folder.0.join("rest"), |config| {
        config.site = vec![
            site(folder, &["a.test", "*.a.test"], "a"),
            site(folder, &["b.a.test", "[::1]"], "b"),
        ];
        change(config);
    })
}

#[test]
fn each_host_has_its_own_files_and_unknown_hosts_have_the_default() {
    let folder = folders();
    let server = server(&folder, |_| {});
    for (host, site_name) in [
        ("a.test", "a"),
        ("A.Test.:8080", "a"),
        ("www.a.test", "a"),
        ("x.y.a.test", "a"),
        ("b.a.test", "b"),
        ("[::1]:80", "b"),
        ("other.test", "rest"),
        ("127.0.0.1", "rest"),
        ("", "rest"),
    ] {
        let answer = server.response_to(&format!("GET /who.txt HTTP/1.1\r\nhost: {host}\r\n"));
        assert!(
            answer.ends_with(&format!("\r\n\r\n{site_name}")),
            "{host}: {answer}"
        );
        if host.is_empty() {
            continue;
        }
        // The host in the target takes precedence over the `Host` field.
        let answer = server.response_to(&format!(
            "GET http://{host}/who.txt HTTP/1.1\r\nhost: z.test\r\n"
        ));
        assert!(
            answer.ends_with(&format!("\r\n\r\n{site_name}")),
            "{host}: {answer}"
        );
        let url = format!("{}/who.txt", server.url(""));
        let field = format!("host: {host}");
        let args = ["-sS", "--http2-prior-knowledge", "-H", &field, &url];
        if let Some(output) = tool("curl", &args) {
            assert_eq!(output_text(&output), site_name, "HTTP/2, {host}");
        }
    }
    let answer = server.exchange("GET /who.txt HTTP/1.0\r\n\r\n");
    assert!(answer.ends_with("\r\n\r\nrest"), "{answer}");
}

#[test]
fn a_request_with_a_missing_or_invalid_host_is_refused() {
    let folder = folders();
    for server in [
        TestServer::files(&folder.0.join("rest")),
        server(&folder, |_| {}),
    ] {
        for (head, status) in [
            ("GET / HTTP/1.1\r\nhost: a.test/x\r\n", "400"),
            ("GET / HTTP/1.1\r\nhost: a\u{e4}.test\r\n", "400"),
            ("GET http://me@a.test/ HTTP/1.1\r\nhost: a.test\r\n", "400"),
            ("GET /healthz HTTP/1.1\r\nhost: a.test/x\r\n", "400"),
            ("GET / HTTP/1.0\r\nhost: a\r\nhost: a\r\n", "400"),
            ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n", "400"),
            ("GET / HTTP/1.1\r\n", "400"),
            ("GET http://a.test/ HTTP/1.1\r\n", "400"),
            ("GET http://a.test/ HTTP/1.1\r\nhost: b\r\n", "200"),
            ("GET / HTTP/1.1\r\nhost:\r\n", "200"),
            ("GET / HTTP/1.0\r\n", "200"),
            ("GET / HTTP/1.1\r\nhost: a.test\r\n", "200"),
        ] {
            let answer = server.response_to(head);
            assert_eq!(answer.get(9..12), Some(status), "{head}: {answer}");
        }
    }
}

#[test]
fn an_authority_and_a_host_that_differ_are_refused() {
    let folder = folders();
    let server = server(&folder, |_| {});
    // Indices in HPACK's static table: 8 is status 200, 12 is status 400.
    for (host, status) in [(None, 0x88), (Some("X"), 0x88), (Some("b.test"), 0x8c)] {
        let fields = host.map(|host| ("host", host));
        let mut stream = connect_http2(&server);
        let request = get(1, "/", fields.as_slice());
        stream.write_all(&request).unwrap();
        let mut frames = std::iter::from_fn(|| Frame::read(&mut stream));
        let head = frames.find(|frame| frame.kind == HEADERS).unwrap();
        assert_eq!(head.payload[0], status, "{host:?}");
    }
}

#[test]
fn rules_and_file_settings_are_those_of_the_site() {
    let folder = folders();
    folder.write("a/.secret", "hidden");
    let server = server(&folder, |config| {
        config.priority = vec!["/plaintext=20".parse().unwrap()];
        config.site[0].priority = vec!["/who.txt=9".parse().unwrap(), "/=30".parse().unwrap()];
        config.site[0].files = Some(Files {
            hidden: true,
            cache_control: Some("max-age=5".into()),
            ..Files::default()
        });
        config.access_log = Some(folder.0.join("log"));
    });
    let get = |host: &str, path: &str| {
        server.response_to(&format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n"))
    };
    assert!(get("a.test", "/who.txt").contains("cache-control: max-age=5\r\n"));
    assert!(get("a.test", "/.secret").ends_with("hidden"));
    assert!(get("a.test", "/plaintext").ends_with("Hello, World!"));
    assert!(!get("b.a.test", "/who.txt").contains("cache-control"));
    assert!(get("b.a.test", "/.secret").starts_with("HTTP/1.1 404"));
    server.end();
    let log = std::fs::read_to_string(folder.0.join("log")).unwrap();
    let lines = log.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let host = line["host"].as_str().unwrap().to_owned();
        (host, line["level"].as_u64().unwrap())
    });
    let expected = [
        ("a.test", 9),
        ("a.test", 30),
        ("a.test", 20),
        ("b.a.test", 28),
        ("b.a.test", 28),
    ];
    let expected = expected.map(|(host, level)| (host.to_owned(), level));
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}

#[test]
fn a_reload_adds_hosts_and_changes_the_levels_of_running_requests() {
    let folder = folders();
    let config = std::sync::Arc::new(std::sync::Mutex::new(None::<Config>));
    let read = config.clone();
    let mut initial = None;
    let server = TestServer::start(
        &folder.0.join("rest"),
        |config| {
            config.site = vec![site(&folder, &["a.test"], "a")];
            initial = Some(config.clone());
        },
        move |server| server.with_reload(move || Ok(read.lock().unwrap().clone().unwrap())),
    );
    let site_name = |host: &str| {
        let answer = server.response_to(&format!("GET /who.txt HTTP/1.1\r\nhost: {host}\r\n"));
        answer.rsplit('\n').next().unwrap().to_owned()
    };
    assert_eq!(
        (site_name("a.test"), site_name("b.test")),
        ("a".into(), "rest".into())
    );
    // The request runs long enough for its level to be observed.
    let head = "GET /matrix?n=512 HTTP/1.1\r\nhost: a.test\r\npriority: u=7\r\n\r\n";
    let _long = server.connect_and_send(head);
    server.wait_for_requests(1);
    let mut changed = initial.unwrap();
    changed.root = folder.0.join("b");
    changed.site[0].priority = vec!["/matrix=62".parse().unwrap()];
    changed.site.push(site(&folder, &["b.test"], "b"));
    *config.lock().unwrap() = Some(changed.clone());
    let reloaded = server.control.reload().unwrap();
    assert_eq!((reloaded.moved, reloaded.restart.len()), (1, 0));
    assert_eq!(
        (
            site_name("a.test"),
            site_name("b.test"),
            site_name("c.test")
        ),
        ("a".into(), "b".into(), "b".into())
    );
    // An invalid configuration changes nothing.
    changed.site.push(site(&folder, &["a.test"], "b"));
    *config.lock().unwrap() = Some(changed);
    let error = server.control.reload().unwrap_err();
    assert!(error.contains("site 1 and site 3"), "{error}");
    assert_eq!(site_name("a.test"), "a");
}

#[test]
fn the_certificate_is_chosen_by_the_requested_host() {
    let folder = folders();
    let rest = certificate(&folder, "rest", &["rest.test"]);
    let a = certificate(&folder, "a", &["a.test", "*.a.test"]);
    let b = certificate(&folder, "b", &["b.a.test"]);
    let server = server(&folder, |config| {
        config.tls = Some(rest.clone());
        config.site[0].tls = Some(a.clone());
        config.site[1].tls = Some(b.clone());
        // This site has no certificate, and uses the default one.
        config.site.push(site(&folder, &["c.rest.test"], "b"));
    });
    let get = |certificate: &Path, server_name: &str, options: &[&str]| {
        let output = curl(&server, certificate, server_name, options, "/who.txt")?;
        Some((output.status.success(), output_text(&output)))
    };
    for version in ["--http1.1", "--http2"] {
        for (files, server_name, site_name) in [
            (&rest, "rest.test", "rest"),
            (&a, "a.test", "a"),
            (&a, "www.a.test", "a"),
            (&b, "b.a.test", "b"),
        ] {
            let Some(answer) = get(&files.certificate, server_name, &[version]) else {
                return;
            };
            assert_eq!(answer, (true, site_name.to_owned()), "{server_name}");
        }
        // A client that requests another host gets another certificate, which it does not trust.
        let (succeeded, _) = get(&a.certificate, "b.a.test", &[version]).unwrap();
        assert!(!succeeded);
        // A request for another host on the same connection is served only if this host has the
        // same certificate.
        for (host, answer) in [
            ("x.a.test", "a"),
            ("b.a.test", "this connection is to another host\n421"),
            ("rest.test", "this connection is to another host\n421"),
        ] {
            let field = format!("host: {host}");
            let mut options = vec![version, "-H", &field];
            if host != "x.a.test" {
                options.extend(["-w", "%{http_code}"]);
            }
            let outcome = get(&a.certificate, "a.test", &options).unwrap();
            assert_eq!(outcome, (true, answer.to_owned()), "{version}, {host}");
        }
        let options = [version, "-H", "host: c.rest.test"];
        let outcome = get(&rest.certificate, "rest.test", &options).unwrap();
        assert_eq!(outcome, (true, "b".to_owned()));
        // Without a server name, the server sends the default certificate, and serves the requested
        // host.
        let port = server.address.port();
        let url = format!("https://127.0.0.1:{port}/who.txt");
        let output = tool("curl", &["-sSk", version, "-H", "host: a.test", &url]).unwrap();
        assert_eq!(output_text(&output), "a");
    }
    // A reload reads the certificates of all sites again.
    let new = certificate(&folder, "b", &["b.a.test"]);
    assert_eq!(new, b);
    let (succeeded, _) = get(&b.certificate, "b.a.test", &[]).unwrap();
    assert!(!succeeded, "the old certificate is still in use");
    server.control.reload().unwrap();
    let answer = get(&b.certificate, "b.a.test", &[]).unwrap();
    assert_eq!(answer, (true, "b".to_owned()));
}

#[test]
fn errors_in_certificates_and_keys_are_reported() {
    let folder = folders();
    let good = certificate(&folder, "good", &["a.test"]);
    let other = certificate(&folder, "other", &["b.a.test"]);
    let pem = |name: &str, text: &str| folder.write(name, text);
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    for (certificate, key, expected) in [
        (
            &good.certificate,
            &other.key,
            "other.key is not the key of certificate",
        ),
        (&good.key, &good.certificate, "mixed up"),
        (&good.certificate, &good.certificate, "mixed up"),
        (&good.certificate, &folder.0.join("none.key"), "none.key: "),
        (&folder.0.join("none.pem"), &good.key, "none.pem: "),
        (&pem("text.pem", "x"), &good.key, "no `BEGIN CERTIFICATE`"),
        (
            &good.certificate,
            &pem("text.key", "x"),
            "no `BEGIN PRIVATE KEY`",
        ),
        (
            &good.certificate,
            &pem("locked.key", encrypted),
            "openssl pkey",
        ),
    ] {
        let files = TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
        };
        let error = bind_error(&folder, files);
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

/// Returns the error with which a server refuses `files` as the certificate of a site.
fn bind_error(folder: &Folder, files: TlsFiles) -> String {
    let good = certificate(folder, "default", &["rest.test"]);
    let mut site = site(folder, &["a.test"], "a");
    site.tls = Some(files);
    let config = Config {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        root: folder.0.clone(),
        tls: Some(good),
        site: vec![site],
        ..Config::default()
    };
    let runtime = upshift::Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async move { upshift_serve::Server::bind(config).unwrap_err() })
}
