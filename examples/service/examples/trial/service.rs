//! Runs the service as a child process, and checks every route.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Result, downloads, partner};

const TIMEOUT: Duration = Duration::from_secs(20);

pub struct Service {
    child: Child,
    pub address: SocketAddr,
}

impl Service {
    pub fn start(program: &str, folder: &Path, partner: SocketAddr) -> Result<Service> {
        let mut child = Command::new(program)
            .env("LISTEN", "127.0.0.1:0")
            .env(
                "PARTNER_URL",
                format!("https://localhost:{}/", partner.port()),
            )
            .env("PARTNER_CA", folder.join(partner::CERTIFICATE))
            .env("FILES", folder)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().ok_or("no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on http://");
        let address = address.ok_or_else(|| format!("the service printed {line:?}"))?;
        let address = address.parse()?;
        Ok(Service { child, address })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM and waits until the service has answered the pending requests and has exited.
    pub fn stop(mut self) -> Result<()> {
        // SAFETY: the call takes no pointers, and the id still names the child, which has not been
        // waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            if let Some(status) = self.child.try_wait()? {
                return status
                    .success()
                    .then_some(())
                    .ok_or_else(|| format!("the service ended with {status}").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Err("the service does not end".into())
    }

    /// Sends a request and returns the body of the response, which must have this status.
    pub fn expect(&self, method: &str, path: &str, body: &str, status: u16) -> Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if !answer.starts_with(&format!("HTTP/1.1 {status}")) {
            return Err(format!("{method} {path}: {answer:?}").into());
        }
        Ok(answer
            .split_once("\r\n\r\n")
            .unwrap_or_default()
            .1
            .to_owned())
    }

    pub fn get(&self, path: &str) -> Result<String> {
        self.expect("GET", path, "", 200)
    }

    /// Requests every route at least once, and places `orders` orders.
    pub fn check_routes(&self, orders: usize) -> Result<()> {
        let has = |text: String, part: &str| {
            text.contains(part)
                .then_some(())
                .ok_or_else(|| format!("no {part} in {text:?}"))
        };
        has(self.get("/healthz")?, "ok")?;
        for n in 0..orders {
            let item = ["lamp", "chair", "table"][n % 3];
            let order = format!("{{\"item\":\"{item}\",\"quantity\":{}}}", n % 7 + 1);
            self.expect("POST", "/orders", &order, 201)?;
        }
        self.expect("POST", "/orders", "{\"item\":\"lamp\",\"quantity\":0}", 422)?;
        has(self.get("/orders/1")?, "\"views\":1")?;
        self.expect("GET", "/orders/0", "", 404)?;
        has(self.get("/quotes/lamp")?, "400")?;
        self.expect("GET", "/report", "", 404)?;
        let file = format!("/files/{}", downloads::SMALL);
        has(self.get(&file)?, downloads::SMALL)?;
        self.check_events()
    }

    fn check_events(&self) -> Result<()> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let (mut socket, _) = tungstenite::client(format!("ws://{}/events", self.address), stream)
            .map_err(|error| error.to_string())?;
        socket.send("hello".into())?;
        if socket.read()?.to_text()? != "hello" {
            return Err("the web socket sent another answer".into());
        }
        self.expect("POST", "/orders", "{\"item\":\"vase\",\"quantity\":1}", 201)?;
        let event = socket.read()?;
        if event.to_text()?.contains("vase") {
            Ok(())
        } else {
            Err(format!("the web socket announced {event}").into())
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
