//! TLS: both versions of HTTP by ALPN, large bodies, reload of the certificate, and plain bytes on
//! a TLS port.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use upshift_serve::{Config, TlsFiles};

use crate::harness::{Folder, TestServer, output_text, run_tool};

/// A certificate for these names, in files of this name.
pub(crate) fn certificate(folder: &Folder, file: &str, names: &[&str]) -> TlsFiles {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    TlsFiles {
        certificate: folder.write(&format!("{file}.pem"), made.cert.pem()),
        key: folder.write(&format!("{file}.key"), made.signing_key.serialize_pem()),
    }
}

/// curl that trusts this certificate and takes `name` for the server.
pub(crate) fn curl(
    server: &TestServer,
    certificate: &Path,
    name: &str,
    more: &[&str],
    path: &str,
) -> Option<std::process::Output> {
    let port = server.address.port();
    let connect = format!("{name}:{port}:127.0.0.1:{port}");
    let url = format!("https://{name}:{port}{path}");
    let mut args = vec![
        "-sS",
        "--max-time",
        "20",
        "--connect-to",
        &connect,
        "--cacert",
        certificate.to_str()?,
    ];
    args.extend_from_slice(more);
    args.push(&url);
    run_tool("curl", &args)
}

#[test]
fn both_versions_of_http_are_chosen_by_the_client() {
    let folder = Folder::new();
    let tls = certificate(&folder, "cert", &["first.test"]);
    let body: Vec<u8> = (0..3_000_000u32).map(|n| (n * 13 % 251) as u8).collect();
    folder.write("root/big.bin", &body);
    let files = tls.clone();
    let server = TestServer::with(&folder.0.join("root"), |config| config.tls = Some(files));
    for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let more = [flag, "-w", "%{stderr}%{http_version}"];
        let Some(output) = curl(&server, &tls.certificate, "first.test", &more, "/big.bin") else {
            return;
        };
        assert_eq!(String::from_utf8_lossy(&output.stderr), version);
        assert!(
            output.stdout == body,
            "{version}: {} bytes",
            output.stdout.len()
        );
    }
    // A client that does not speak TLS is told so, and harms no other connection.
    for version in ["HTTP/1.1\r\nhost: x", "HTTP/1.0"] {
        let answer = server.talk(format!("GET / {version}\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.ends_with("use https\n"), "{answer}");
    }
    // Bytes that are neither get no answer of HTTP.
    let answer = server.talk("\x01GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(!answer.contains("HTTP/1.1"), "{answer}");
    server.wait_until_idle();
}

#[test]
fn a_new_certificate_is_used_after_a_reload() {
    let folder = Folder::new();
    let tls = certificate(&folder, "cert", &["old.test"]);
    let files = tls.clone();
    let server = TestServer::with(&folder.0, |config| config.tls = Some(files));
    let get = |name: &str| curl(&server, &tls.certificate, name, &[], "/plaintext");
    let Some(output) = get("old.test") else {
        return;
    };
    assert_eq!(output_text(&output), "Hello, World!");
    certificate(&folder, "cert", &["new.test"]);
    let Some(output) = get("new.test") else {
        return;
    };
    assert!(!output.status.success(), "the old one is in use still");
    server.control.reload().unwrap();
    let Some(output) = get("new.test") else {
        return;
    };
    assert_eq!(output_text(&output), "Hello, World!");
    // A broken one is said, and changes nothing.
    folder.write("cert.pem", "rubbish");
    let error = server.control.reload().unwrap_err();
    assert!(error.contains("cert.pem"), "{error}");
}

/// A client, record by record, that trusts the certificate for `first.test`.
pub(crate) fn shake_hands(
    server: &TestServer,
    tls: &TlsFiles,
) -> (rustls::ClientConnection, TcpStream) {
    shake_hands_on(server.connect(), tls, &[])
}

/// The same on a given connection, of a client that offers these protocols (ALPN).
pub(crate) fn shake_hands_on(
    mut stream: TcpStream,
    tls: &TlsFiles,
    protocols: &[&str],
) -> (rustls::ClientConnection, TcpStream) {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(&tls.certificate).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    let name = ServerName::try_from("first.test").unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    while client.is_handshaking() {
        client.complete_io(&mut stream).unwrap();
    }
    (client, stream)
}

#[test]
fn bytes_after_the_end_of_a_connection_are_ignored() {
    let folder = Folder::new();
    let tls = certificate(&folder, "cert", &["first.test"]);
    let files = tls.clone();
    let server = TestServer::with(&folder.0, |config| config.tls = Some(files));
    let (mut client, mut stream) = shake_hands(&server, &tls);
    client.writer().write_all(&[b'x'; 16384]).unwrap();
    client.send_close_notify();
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    bytes.extend_from_slice(&[7; 4096]);
    // The largest record is nearly whole when its end, the end of the connection and more bytes
    // arrive at once.
    let (first, last) = bytes.split_at(16400);
    stream.write_all(first).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    stream.write_all(last).unwrap();
    server.wait_until_idle();
}

#[test]
fn records_of_all_sizes_are_read() {
    let folder = Folder::new();
    let tls = certificate(&folder, "cert", &["first.test"]);
    let files = tls.clone();
    let length = |body: String| async move { body.len().to_string() };
    let app = axum::Router::new()
        .route("/", axum::routing::post(length))
        .layer(axum::extract::DefaultBodyLimit::disable());
    let set = |config: &mut Config| {
        config.tls = Some(files);
        config.limits.body_bytes = 64 << 20;
    };
    let server = TestServer::with_service(&folder, set, app);
    let (mut client, mut stream) = shake_hands(&server, &tls);
    // A record each, the largest possible one and a small one, 16438 bytes together: they end
    // everywhere in the receive buffers of the server.
    let sizes = [16384, 10].repeat(1100);
    let total: usize = sizes.iter().sum();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {total}\r\n\r\n"
    );
    client.writer().write_all(head.as_bytes()).unwrap();
    let mut records = Vec::new();
    for size in sizes {
        client.writer().write_all(&vec![b'x'; size]).unwrap();
        while client.wants_write() {
            client.write_tls(&mut records).unwrap();
        }
    }
    // If the server closes early, its answer is missing.
    let _ = stream.write_all(&records);
    let mut answer = String::new();
    let _ = rustls::Stream::new(&mut client, &mut stream).read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with(&total.to_string()), "{answer}");
}
