//! TLS: both versions of HTTP by ALPN, large bodies, reload of the certificate, and what is no TLS.

use std::path::Path;

use upshift_serve::TlsFiles;

use crate::harness::{Folder, Running, said, tool};

fn certificate(folder: &Folder, name: &str) -> TlsFiles {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    TlsFiles {
        certificate: folder.write("cert.pem", made.cert.pem()),
        key: folder.write("key.pem", made.signing_key.serialize_pem()),
    }
}

/// curl that trusts this certificate and takes `name` for the server.
fn curl(
    server: &Running,
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
    tool("curl", &args)
}

#[test]
fn both_versions_of_http_are_chosen_by_the_client() {
    let folder = Folder::new();
    let tls = certificate(&folder, "first.test");
    let body: Vec<u8> = (0..3_000_000u32).map(|n| (n * 13 % 251) as u8).collect();
    folder.write("root/big.bin", &body);
    let files = tls.clone();
    let server = Running::with(&folder.0.join("root"), |config| config.tls = Some(files));
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
    // What is not TLS gets no answer of HTTP, and harms nobody.
    let answer = server.talk("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(!answer.contains("HTTP/1.1"), "{answer}");
}

#[test]
fn a_new_certificate_is_used_after_a_reload() {
    let folder = Folder::new();
    let tls = certificate(&folder, "old.test");
    let files = tls.clone();
    let server = Running::with(&folder.0, |config| config.tls = Some(files));
    let get = |name: &str| curl(&server, &tls.certificate, name, &[], "/plaintext");
    let Some(output) = get("old.test") else {
        return;
    };
    assert_eq!(said(&output), "Hello, World!");
    certificate(&folder, "new.test");
    let Some(output) = get("new.test") else {
        return;
    };
    assert!(!output.status.success(), "the old one is in use still");
    server.control.reload().unwrap();
    let Some(output) = get("new.test") else {
        return;
    };
    assert_eq!(said(&output), "Hello, World!");
    // A broken one is said, and changes nothing.
    folder.write("cert.pem", "rubbish");
    let error = server.control.reload().unwrap_err();
    assert!(error.contains("cert.pem"), "{error}");
}
