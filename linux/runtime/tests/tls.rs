//! Tests of TLS over the runtime's streams: handshakes, large transfers in both directions, faulty
//! peers.

#[path = "support/block_on.rs"]
mod block_on;

use std::io::ErrorKind;
use std::time::Duration;

use upshift::io::{AsyncReadExt, AsyncWriteExt};
use upshift::net::{TcpListener, TcpStream, UnixStream};
use upshift::tls::{self, Acceptor, Connector};
use upshift::{Preemption, Priority, Runtime, time};

use block_on::block_on;

struct Identity {
    certificate: String,
    key: String,
}

fn identity(host: &str) -> Identity {
    let generated = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
    Identity {
        certificate: generated.cert.pem(),
        key: generated.signing_key.serialize_pem(),
    }
}

fn acceptor_and_connector(identity: &Identity) -> (Acceptor, Connector) {
    let (certificate, key) = (identity.certificate.as_bytes(), identity.key.as_bytes());
    let mut server = tls::server_config(certificate, key).unwrap();
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut client = tls::client_config(certificate).unwrap();
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    (Acceptor::new(server), Connector::new(client))
}

/// Sends 2 MiB to an echo server over TLS, and checks that the server sends the same bytes back.
fn check_echo(runtime: &Runtime) {
    let (acceptor, connector) = acceptor_and_connector(&identity("localhost"));
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = upshift::spawn(
            async move {
                let (stream, _) = listener.accept().await.unwrap();
                let mut stream = acceptor.accept(stream).await.unwrap();
                assert_eq!(stream.alpn_protocol(), Some(&b"http/1.1"[..]));
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await.unwrap();
                stream.write_all(&all).await.unwrap();
                stream.close().await.unwrap();
                all.len()
            },
            Priority::Inherit,
        );
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = connector.connect("localhost", stream).await.unwrap();
        assert_eq!(stream.peer_certificates().unwrap().len(), 1);
        stream.get_ref().set_nodelay(true).unwrap();
        let sent: Vec<u8> = (0..2 << 20).map(|n: u32| (n % 251) as u8).collect();
        stream.write_all(&sent).await.unwrap();
        stream.close().await.unwrap();
        let mut echoed = Vec::new();
        stream.read_to_end(&mut echoed).await.unwrap();
        assert!(echoed == sent);
        assert_eq!(server.await.unwrap(), sent.len());
    });
}

#[test]
fn large_transfers_work_in_both_directions_over_tcp() {
    check_echo(&Runtime::builder().vcpus(1).build().unwrap());
}

#[test]
fn large_transfers_work_in_both_directions_on_preemptible_vcpus() {
    let builder = Runtime::builder()
        .vcpus(2)
        .preemption(Preemption::Preferred);
    check_echo(&builder.build().unwrap());
}

#[test]
fn a_certificate_for_another_host_or_from_an_unknown_issuer_is_refused() {
    block_on(async {
        let (acceptor, connector) = acceptor_and_connector(&identity("localhost"));
        let (_, untrusting) = acceptor_and_connector(&identity("localhost"));
        for (connector, host) in [(&connector, "elsewhere"), (&untrusting, "localhost")] {
            let (client, server) = UnixStream::pair().unwrap();
            let (refused, unwanted) =
                futures_util::join!(connector.connect(host, client), acceptor.accept(server));
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidData);
            assert!(unwanted.is_err());
        }
        let (client, _server) = UnixStream::pair().unwrap();
        let error = connector.connect("not a host", client).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn faulty_peers_are_errors_and_silent_peers_time_out() {
    block_on(async {
        let (acceptor, connector) = acceptor_and_connector(&identity("localhost"));
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all("GET / HTTP/1.1\r\n\r\n").await.0.unwrap();
        let error = acceptor.accept(server).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);

        let (silent, server) = UnixStream::pair().unwrap();
        let waiting = time::timeout(Duration::from_millis(10), acceptor.accept(server)).await;
        assert!(waiting.is_err());
        drop(silent);

        // The connection is closed without TLS's close notification.
        let (client, server) = UnixStream::pair().unwrap();
        let (client, server) = futures_util::join!(
            connector.connect("localhost", client),
            acceptor.accept(server)
        );
        let mut server = server.unwrap();
        drop(client);
        let error = server.read_to_end(&mut Vec::new()).await.unwrap_err();
        // The error is a reset if the client had unread data.
        let cut_off = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
        assert!(cut_off.contains(&error.kind()), "{error}");
    });
}

#[test]
fn errors_name_the_invalid_input() {
    let good = identity("localhost");
    let other = identity("localhost");
    let error_of = |certificate: &str, key: &str| {
        let result = tls::server_config(certificate.as_bytes(), key.as_bytes());
        result.unwrap_err().to_string()
    };
    assert!(error_of("", &good.key).contains("BEGIN CERTIFICATE"));
    assert!(error_of(&good.certificate, "").contains("BEGIN PRIVATE KEY"));
    assert!(error_of(&good.certificate, &other.key).contains("cannot be used"));
    let missing = block_on(tls::load_server_config("/no/such.pem", "/no/such.key"));
    assert!(missing.unwrap_err().to_string().contains("/no/such.pem"));
}

#[test]
fn tls_futures_may_move_between_threads() {
    fn assert_send<T: Send>(_: T) {}
    #[expect(dead_code, reason = "it only has to compile")]
    fn all(acceptor: &'static Acceptor, connector: &'static Connector, stream: [TcpStream; 2]) {
        let [first, second] = stream;
        assert_send(acceptor.accept(first));
        assert_send(connector.connect("localhost", second));
        assert_send(tls::load_server_config("", ""));
    }
}
