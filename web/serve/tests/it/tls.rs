//! Tests of TLS: both versions of HTTP by ALPN, large bodies, reload of the certificate, and plain
//! bytes on a TLS port.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use upshift_serve::{Config, TlsFiles};

use crate::harness::{Folder, TestServer, output_text, tool};

/// Creates a self-signed certificate for `names`, in `FILE.pem` and `FILE.key`.
pub(crate) fn certificate(folder: &Folder, file: &str, names: &[&str]) -> TlsFiles {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let generated = rcgen::generate_simple_self_signed(names).unwrap();
    TlsFiles {
        certificate: folder.write(&format!("{file}.pem"), generated.cert.pem()),
        key: folder.write(
            &format!("{file}.key"),
            generated.signing_key.serialize_pem(),
        ),
    }
}

/// Runs curl, which trusts `certificate` only and connects to the server for the host `name`.
pub(crate) fn curl(
    server: &TestServer,
    certificate: &Path,
    name: &str,
    options: &[&str],
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
    args.extend_from_slice(options);
    args.push(&url);
    tool("curl", &args)
}

#[test]
fn the_client_chooses_the_version_of_http_and_plain_http_is_refused() {
    let folder = Folder::new();
    let tls = certificate(&folder, "cert", &["first.test"]);
    let body: Vec<u8> = (0..3_000_000u32).map(|n| (n * 13 % 251) as u8).collect();
    folder.write("root/big.bin", &body);
    let files = tls.clone();
    let server = TestServer::with_config(&folder.0.join("root"), |config| config.tls = Some(files));
    for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let options = [flag, "-w", "%{stderr}%{http_version}"];
        let Some(output) = curl(
            &server,
            &tls.certificate,
            "first.test",
            &options,
            "/big.bin",
        ) else {
            return;
        };
        assert_eq!(String::from_utf8_lossy(&output.stderr), version);
        assert!(
            output.stdout == body,
            "{version}: {} bytes",
            output.stdout.len()
        );
    }
    // The response to a client that does not speak TLS names the reason. Other connections are not
    // affected.
    for version in ["HTTP/1.1\r\nhost: x", "HTTP/1.0"] {
        let answer = server.exchange(format!("GET / {version}\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.ends_with("use https\n"), "{answer}");
    }
    // Bytes that are neither TLS nor HTTP get no HTTP response.
    let answer = server.exchange("\x01GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(!answer.contains("HTTP/1.1"), "{answer}");
    server.wait_until_idle();
}

#[test]
fn a_new_certificate_is_used_after_a_reload() {
    let folder = Folder::new();
    let tls = certificate(&folder, "cert", &["old.test"]);
    let files = tls.clone();
    let server = TestServer::with_config(&folder.0, |config| config.tls = Some(files));
    let get = |name: &str| curl(&server, &tls.certificate, name, &[], "/plaintext");
    let Some(output) = get("old.test") else {
        return;
    };
    assert_eq!(output_text(&output), "Hello, World!");
    certificate(&folder, "cert", &["new.test"]);
    let Some(output) = get("new.test") else {
        return;
    };
    assert!(
        !output.status.success(),
        "the old certificate is still in use"
    );
    server.control.reload().unwrap();
    let Some(output) = get("new.test") else {
        return;
    };
    assert_eq!(output_text(&output), "Hello, World!");
    // An invalid certificate is reported, and changes nothing.
    folder.write("cert.pem", "rubbish");
    let error = server.control.reload().unwrap_err();
    assert!(error.contains("cert.pem"), "{error}");
}

/// Opens a connection and completes the handshake of a client that trusts the certificate of
/// `first.test`.
pub(crate) fn connect_tls(
    server: &TestServer,
    tls: &TlsFiles,
) -> (rustls::ClientConnection, TcpStream) {
    tls_handshake(server.connect(), tls, &[])
}

/// Completes the handshake on `stream`, for a client that offers `protocols` (ALPN).
pub(crate) fn tls_handshake(
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
fn bytes_after_close_notify_are_ignored() {
    let folder = Folder::new();
    let tls = certificate(&folder, "cert", &["first.test"]);
    let files = tls.clone();
    let server = TestServer::with_config(&folder.0, |config| config.tls = Some(files));
    let (mut client, mut stream) = connect_tls(&server, &tls);
    client.writer().write_all(&[b'x'; 16384]).unwrap();
    client.send_close_notify();
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    bytes.extend_from_slice(&[7; 4096]);
    // At first, all but the end of the largest record arrives. Then its end, the `close_notify`
    // alert and further bytes arrive at once.
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
    let answer_length = |body: String| async move { body.len().to_string() };
    let app = axum::Router::new()
        .route("/", axum::routing::post(answer_length))
        .layer(axum::extract::DefaultBodyLimit::disable());
    let set = |config: &mut Config| {
        config.tls = Some(files);
        config.limits.body_bytes = 64 << 20;
    };
    let server = TestServer::with_service(&folder, set, app);
    let (mut client, mut stream) = connect_tls(&server, &tls);
    // Records of the largest size and small ones alternate. A pair takes 16,438 bytes, so that
    // records end at every position in the server's receive buffers.
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
    // If the server closes early, the assertion below finds no response.
    let _ = stream.write_all(&records);
    let mut answer = String::new();
    let _ = rustls::Stream::new(&mut client, &mut stream).read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with(&total.to_string()), "{answer}");
}
