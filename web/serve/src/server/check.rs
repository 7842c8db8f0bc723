//! Checks of the folders, certificates, addresses and paths of a server that is not started.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use crate::config::{Address, BindTo, Config};
use crate::server::bind::{explain, holder};
use crate::sites::Sites;

/// Commands that may hold the port of a server that is to read these settings: the server itself,
/// and systemd for a `.socket` unit.
const OWN: [&str; 2] = ["upshift", "systemd"];
/// Longest path of a Unix socket, in bytes.
const LONGEST: usize = 108;

/// Does the work of [`Server::check`](crate::Server::check).
pub(super) fn check(config: &Config) -> Result<Vec<String>, String> {
    config.check()?;
    let mut faults = Vec::new();
    let mut remarks = Vec::new();
    match Sites::open(config) {
        Ok(sites) => remarks = sites.remarks,
        Err(error) => faults.push(error),
    }
    for (at, address) in config.listen.iter().enumerate() {
        let earlier = &config.listen[..at];
        let fault = match earlier
            .iter()
            .find(|one| overlap(&one.place, &address.place))
        {
            Some(one) => Err(format!(
                "cannot listen on {address}: `listen` has {one} already, keep one of the two"
            )),
            None => listens(address),
        };
        faults.extend(fault.err());
    }
    let paths = [
        ("access log", &config.access_log),
        ("control", &config.control),
    ];
    for (name, path) in paths {
        let path = path.as_ref().filter(|path| path.as_os_str() != "-");
        let error = path.and_then(|path| match name {
            "control" => socket(path).err(),
            _ => writable(path).err(),
        });
        if let (Some(path), Some(error)) = (path, error) {
            faults.push(format!("{name} {}: {error}", path.display()));
        }
    }
    if faults.is_empty() {
        Ok(remarks)
    } else {
        Err(faults.join("\n"))
    }
}

fn listens(address: &Address) -> Result<(), String> {
    let (ip, bound) = match &address.place {
        BindTo::Ip(ip) => (*ip, bind(*ip)),
        BindTo::Port(port) => {
            let six = SocketAddr::from((Ipv6Addr::UNSPECIFIED, *port));
            let four = SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port));
            let bound = bind(six);
            match bound {
                Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => (four, bind(four)),
                bound => (six, bound),
            }
        }
        BindTo::Unix { path, .. } => {
            return socket(path).map_err(|error| format!("cannot listen on {address}: {error}"));
        }
    };
    let own = || holder(ip).is_some_and(|(pid, _)| is_own(pid));
    match bound {
        Ok(()) => Ok(()),
        Err(Errno::ADDRINUSE) if own() => Ok(()),
        Err(error) => Err(format!(
            "cannot listen on {address}: {}",
            explain(ip, &error.into())
        )),
    }
}

/// Tells whether a socket at one place keeps another from listening at the other.
fn overlap(one: &BindTo, other: &BindTo) -> bool {
    let file = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (one, other) {
        (BindTo::Unix { path: one, .. }, BindTo::Unix { path: other, .. }) => {
            file(one) == file(other)
        }
        (BindTo::Unix { .. }, _) | (_, BindTo::Unix { .. }) => false,
        // The kernel chooses a free port for 0.
        (BindTo::Port(one), BindTo::Port(other)) => one == other && *one != 0,
        (BindTo::Port(port), BindTo::Ip(ip)) | (BindTo::Ip(ip), BindTo::Port(port)) => {
            ip.port() == *port && *port != 0
        }
        (BindTo::Ip(one), BindTo::Ip(other)) => {
            one.port() == other.port()
                && one.port() != 0
                && (covers(one.ip(), other.ip()) || covers(other.ip(), one.ip()))
        }
    }
}

/// Tells whether a socket on `all` also receives the connections to `one`.
fn covers(all: IpAddr, one: IpAddr) -> bool {
    let same_family = all.is_ipv4() == one.is_ipv4();
    all == one || all.is_unspecified() && (same_family || all.is_ipv6() && !is_v6_only())
}

/// Returns the administrator's setting `net.ipv6.bindv6only`.
fn is_v6_only() -> bool {
    let setting = fs::read_to_string("/proc/sys/net/ipv6/bindv6only");
    setting.is_ok_and(|setting| setting.trim() == "1")
}

fn is_own(pid: u32) -> bool {
    let command = fs::read_to_string(format!("/proc/{pid}/comm"));
    command.is_ok_and(|command| OWN.contains(&command.trim()))
}

/// Binds a socket that does not listen, so that no client connects.
fn bind(address: SocketAddr) -> Result<(), Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    net::bind(&socket, &address)
}

/// Checks that a Unix socket can be created under this name.
fn socket(path: &Path) -> io::Result<()> {
    if path.as_os_str().len() > LONGEST {
        return Err(io::Error::other("the path is too long: 108 bytes at most"));
    }
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(io::Error::other(
            "there is a file that is no socket: remove it",
        )),
        _ => folder(path),
    }
}

/// Checks that a file can be written under this name.
fn writable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(access(path, Access::WRITE_OK)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => folder(path),
        Err(error) => Err(error),
    }
}

/// Checks that a file can be created in the folder of a path.
fn folder(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| {
        let folder = folder.display();
        io::Error::other(format!("no file can be made in {folder}: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap_of(one: &str, other: &str) -> bool {
        let place = |text: &str| text.parse::<Address>().unwrap().place;
        let (one, other) = (place(one), place(other));
        assert_eq!(overlap(&one, &other), overlap(&other, &one));
        overlap(&one, &other)
    }

    #[test]
    fn one_socket_at_a_place() {
        for (one, other) in [
            ("127.0.0.1:21080", "127.0.0.1:21080"),
            ("21080", "127.0.0.1:21080,plain"),
            (":21080", ":21080,plain"),
            (":21080", "127.0.0.1:21080"),
            (":21080", "[::1]:21080"),
            ("0.0.0.0:21080", "10.0.0.1:21080"),
            ("[::]:21080", "[::1]:21080"),
            ("unix:/run/a", "unix:/run/a,mode=600"),
        ] {
            assert!(overlap_of(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("127.0.0.1:21080", "127.0.0.1:21081"),
            ("127.0.0.1:21080", "127.0.0.2:21080"),
            ("127.0.0.1:21080", "[::1]:21080"),
            ("0.0.0.0:21080", "[::1]:21080"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            (":0", ":0"),
            (":0", "127.0.0.1:0"),
            ("unix:/run/a", "unix:/run/b"),
            ("unix:/run/a", ":21080"),
        ] {
            assert!(!overlap_of(one, other), "{one} {other}");
        }
    }
}
