//! Listening on a Unix socket that has a path.
//!
//! A file that a dead server has left is found out by connecting, then removed, then replaced: three steps, between which another
//! server may take the same three. No system call does them at once: a rename over the file would take it from a server that has just begun to listen
//! just as well, a link fails beside what is stale, and none of them compares first. So a process that makes or removes such a file has the lock
//! of `PATH.lock` meanwhile. It is a lock of the kernel (`flock`) and ends with its process, however that ends, and is not one of the folder, which others lock for
//! other reasons (systemd-tmpfiles). The file of the lock is removed by its holder.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The lock is held for a few system calls; a process that holds it for longer has been stopped.
const PATIENCE: Duration = Duration::from_secs(2);

/// The file of a socket that listens. Dropped, it is removed, unless another one has its path by now.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Open as a path: as long as it is, no other file has its inode.
    made: File,
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Without the lock the file stays: the next server removes it.
        let Ok(_lock) = Lock::of(&self.path) else {
            return;
        };
        if is_at(&self.made, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The right to make and to remove the file of a socket.
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    fn of(socket: &Path) -> io::Result<Lock> {
        let mut path = OsString::from(socket);
        path.push(".lock");
        let path = PathBuf::from(path);
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let since = Instant::now();
        loop {
            let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let mode = Mode::from_raw_mode(0o600);
            let opened = rustix::fs::open(&path, flags, mode);
            let file = File::from(opened.map_err(|error| named(error.into()))?);
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Its holder may have removed the file before it let go.
                Ok(()) if is_at(&file, &path) => return Ok(Lock { path, _file: file }),
                Ok(()) => continue,
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(error) => return Err(named(error.into())),
            }
            if since.elapsed() > PATIENCE {
                let why = "another server has begun to listen there and does not go on";
                return Err(named(io::Error::new(io::ErrorKind::AddrInUse, why)));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Before the file is closed, with which the lock ends.
        let _ = fs::remove_file(&self.path);
    }
}

/// Is the open file the one of this path?
fn is_at(file: &File, path: &Path) -> bool {
    let place = |found: fs::Metadata| (found.dev(), found.ino());
    let open = file.metadata().map(place).ok();
    open.is_some() && open == fs::symlink_metadata(path).map(place).ok()
}

/// Listens on a path. What a server has left there that did not end in order is removed; a server that still listens is not disturbed.
/// `mode`: the permissions of the file, which never has more than these. By default what the umask leaves.
pub(crate) fn listen(
    path: &Path,
    mode: Option<u32>,
    backlog: i32,
) -> io::Result<(UnixListener, SocketFile)> {
    let address = address(path)?;
    let _lock = Lock::of(path)?;
    make_room(path, &address)?;
    let socket = stream(SocketFlags::CLOEXEC)?;
    if let Some(mode) = mode {
        // The kernel makes the file with the mode of the socket, less the umask.
        fchmod(&socket, Mode::from_raw_mode(mode))?;
    }
    net::bind(&socket, &address)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = SocketFile {
        path: path.to_owned(),
        made: rustix::fs::open(path, flags, Mode::empty())?.into(),
    };
    if let Some(mode) = mode {
        // The file that was made, even if the name means another one by now.
        let made = format!("/proc/self/fd/{}", file.made.as_raw_fd());
        fs::set_permissions(made, Permissions::from_mode(mode))?;
    }
    net::listen(&socket, backlog)?;
    Ok((UnixListener::from(socket), file))
}

fn stream(flags: SocketFlags) -> io::Result<std::os::fd::OwnedFd> {
    Ok(net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|error| match error {
        Errno::NAMETOOLONG => {
            let why = "the path is too long: 108 bytes at most";
            io::Error::new(io::ErrorKind::InvalidFilename, why)
        }
        error => error.into(),
    })
}

/// Removes a socket without a listener.
fn make_room(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    let error = |why| io::Error::new(io::ErrorKind::AddrInUse, why);
    if !found.file_type().is_socket() {
        return Err(error("there is something else of this name, no socket"));
    }
    // Does not wait for a server that is busy.
    let probe = stream(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    match net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Err(Errno::NOENT) => Ok(()),
        Ok(()) | Err(Errno::AGAIN) => Err(error("another server listens there")),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Removed when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("upshift-socket-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_socket_has_the_mode_asked_for_and_goes_with_its_listener() {
        let folder = Folder::new("mode");
        let path = folder.0.join("socket");
        let (listener, file) = listen(&path, Some(0o666), 4).unwrap();
        let mode = |path| fs::metadata(path).unwrap().mode() & 0o777;
        // Whatever the umask is.
        assert_eq!(mode(&path), 0o666);
        UnixStream::connect(&path).unwrap();
        let taken = listen(&path, None, 4).unwrap_err().to_string();
        assert!(taken.contains("another server"), "{taken}");
        drop((listener, file));
        assert!(!path.exists());
    }

    #[test]
    fn what_a_dead_server_has_left_is_replaced_and_nothing_else() {
        let folder = Folder::new("stale");
        let path = folder.0.join("socket");
        // The file of a listener of the standard library stays.
        drop(UnixListener::bind(&path).unwrap());
        let (first, first_file) = listen(&path, Some(0o600), 4).unwrap();
        drop(first);
        let (_second, _file) = listen(&path, Some(0o600), 4).unwrap();
        // That of a successor stays, too.
        drop(first_file);
        UnixStream::connect(&path).unwrap();
        let other = folder.0.join("file");
        fs::write(&other, "text").unwrap();
        assert!(listen(&other, None, 4).is_err());
        assert_eq!(fs::read_to_string(&other).unwrap(), "text");
    }

    /// One of those that start at once on what a dead server has left listens, the others say that it does, and none removes its file.
    #[test]
    fn of_servers_that_start_at_once_one_listens() {
        let folder = Folder::new("race");
        let path = folder.0.join("socket");
        for _ in 0..200 {
            drop(UnixListener::bind(&path).unwrap());
            let start = std::sync::Barrier::new(4);
            let begin = || {
                start.wait();
                listen(&path, None, 16)
            };
            let mut listening: Vec<_> = thread::scope(|scope| {
                let all: Vec<_> = (0..4).map(|_| scope.spawn(begin)).collect();
                let all = all.into_iter().map(|one| one.join().unwrap());
                all.filter_map(|one| match one {
                    Ok(one) => Some(one),
                    Err(error) => {
                        let said = error.to_string();
                        assert!(said.contains("another server"), "{said}");
                        None
                    }
                })
                .collect()
            });
            assert_eq!(listening.len(), 1);
            let (listener, file) = listening.pop().unwrap();
            let client = UnixStream::connect(&path).unwrap();
            listener.accept().unwrap();
            drop(client);
            // One ends while the next one starts.
            drop(listener);
            let (_, next) = thread::scope(|scope| {
                scope.spawn(|| drop(file));
                listen(&path, None, 16).unwrap()
            });
            assert!(path.exists());
            drop(next);
            assert!(!path.exists());
        }
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
    }

    #[test]
    fn a_lock_that_is_not_let_go_is_named() {
        let folder = Folder::new("lock");
        let path = folder.0.join("socket");
        let _lock = Lock::of(&path).unwrap();
        let said = listen(&path, None, 4).unwrap_err().to_string();
        assert!(said.contains("socket.lock: another server"), "{said}");
    }

    #[test]
    fn a_path_that_is_too_long_is_said_to_be() {
        let folder = Folder::new("long");
        let room = 108 - folder.0.as_os_str().len() - 1;
        let path = folder.0.join("x".repeat(room));
        drop(listen(&path, None, 4).unwrap());
        let long = listen(&folder.0.join("x".repeat(room + 1)), None, 4);
        let said = long.unwrap_err().to_string();
        assert!(said.contains("108 bytes"), "{said}");
    }

    #[test]
    fn a_server_that_does_not_accept_is_not_waited_for() {
        let folder = Folder::new("busy");
        let path = folder.0.join("socket");
        let (_listener, _file) = listen(&path, None, 0).unwrap();
        let mut clients = Vec::new();
        loop {
            let client = stream(SocketFlags::NONBLOCK).unwrap();
            let address = SocketAddrUnix::new(&path).unwrap();
            if net::connect(&client, &address) == Err(Errno::AGAIN) {
                break;
            }
            clients.push(client);
        }
        assert!(listen(&path, None, 0).is_err());
    }
}
