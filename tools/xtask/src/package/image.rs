//! `cargo xtask package image`: makes a container image of the command, without a container engine.
//!
//! The image has one layer: the command, its libraries, and the files that define its user. `docker
//! load` and `podman load` accept the archive. If the user is root, the image is then tried: the
//! command serves a page, as the image's user, with the image's files as its root directory.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Tree, VERSION, output, strip};
use crate::setup;

/// User and group of the image's process; by default no user of the machine has this number.
const USER: u32 = 65532;
/// Time within which the command on trial must answer or end.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Builds an image with this command; returns the archive and the result of its trial.
pub(crate) fn image(root: &Path, binary: &Path) -> io::Result<(PathBuf, String)> {
    let work = setup::target(root).join("xtask");
    let (tree, parts) = (Tree(work.join("image")), work.join("image-archive"));
    for directory in [&tree.0, &parts] {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory)?;
    }
    tree.add_file(&fs::read(binary)?, "usr/bin/upshift", 0o755)?;
    strip(&tree.0.join("usr/bin/upshift"))?;
    for library in libraries(binary)? {
        let place = library.strip_prefix("/").unwrap_or(&library);
        tree.add_file(&fs::read(&library)?, &place.to_string_lossy(), 0o755)?;
    }
    let user = format!("upshift:x:{USER}:{USER}::/srv:/sbin/nologin\n");
    tree.add_file(user.as_bytes(), "etc/passwd", 0o644)?;
    let group = format!("upshift:x:{USER}:\n");
    tree.add_file(group.as_bytes(), "etc/group", 0o644)?;
    tree.add_file(b"hosts: files dns\n", "etc/nsswitch.conf", 0o644)?;
    for (place, mode) in [("srv", 0o755), ("proc", 0o555), ("tmp", 0o1777)] {
        fs::create_dir(tree.0.join(place))?;
        fs::set_permissions(tree.0.join(place), fs::Permissions::from_mode(mode))?;
    }
    pack(&tree.0, &parts.join("layer.tar"), &["."])?;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    let config = json!({
        "architecture": architecture.trim(),
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/upshift"],
            "Cmd": ["serve", "/srv", "--listen", ":8080"],
            "User": format!("{USER}:{USER}"),
            "WorkingDir": "/srv",
            "ExposedPorts": { "8080/tcp": {} },
            "StopSignal": "SIGTERM",
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": [format!("sha256:{}", sum(&parts.join("layer.tar"))?)],
        },
        "history": [{ "created_by": "cargo xtask package image" }],
    });
    fs::write(parts.join("config.json"), config.to_string())?;
    let name = format!("{}.json", sum(&parts.join("config.json"))?);
    fs::rename(parts.join("config.json"), parts.join(&name))?;
    let manifest = json!([{
        "Config": name,
        "RepoTags": [format!("upshift:{VERSION}")],
        "Layers": ["layer.tar"],
    }]);
    fs::write(parts.join("manifest.json"), manifest.to_string())?;
    let path = work.join(format!("upshift_{VERSION}_image.tar"));
    pack(&parts, &path, &["manifest.json", &name, "layer.tar"])?;
    let result = trial(&path, &work.join("image-trial"))?;
    Ok((path, result))
}

/// Returns the libraries that the program loads, and its loader.
fn libraries(binary: &Path) -> io::Result<Vec<PathBuf>> {
    let listing = output(Command::new("ldd").arg(binary))?;
    let path = |line: &str| {
        let word = line.split_whitespace().find(|word| word.starts_with('/'))?;
        Some(PathBuf::from(word))
    };
    Ok(listing.lines().filter_map(path).collect())
}

/// Packs files of a directory reproducibly: the same bytes each time.
fn pack(directory: &Path, archive: &Path, names: &[&str]) -> io::Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--mtime=@0", "--numeric-owner"]);
    tar.args(["--owner=0", "--group=0", "--file"]).arg(archive);
    tar.arg("--directory").arg(directory).args(names);
    output(&mut tar).map(drop)
}

/// Returns the SHA-256 sum of a file.
fn sum(path: &Path) -> io::Result<String> {
    let text = output(Command::new("sha256sum").arg(path))?;
    let sum = text.split_whitespace().next().map(str::to_owned);
    sum.ok_or_else(|| io::Error::other(text))
}

/// Unpacks the archive's layer and serves a page from it.
fn trial(archive: &Path, place: &Path) -> io::Result<String> {
    if !rustix::process::geteuid().is_root() {
        return Ok("image not tried: that requires root".to_owned());
    }
    let _ = fs::remove_dir_all(place);
    let tree = place.join("tree");
    fs::create_dir_all(&tree)?;
    for (from, to) in [(archive, place), (&place.join("layer.tar"), &tree)] {
        let mut tar = Command::new("tar");
        tar.arg("--extract").arg("--file").arg(from);
        output(tar.arg("--directory").arg(to))?;
    }
    fs::write(tree.join("srv/page"), "a page of the image")?;
    let inside = format!(
        "mount -t proc proc \"$0/proc\" && exec chroot --userspec={USER}:{USER} \"$0\" \
         /usr/bin/upshift serve /srv --listen 127.0.0.1:0"
    );
    let mut server = Command::new("unshare");
    server.args(["--mount", "sh", "-c", &inside]).arg(&tree);
    let child = server.stdout(Stdio::piped()).spawn()?;
    let result = TrialServer(child).try_page();
    let _ = fs::remove_dir_all(place);
    result.map(|()| "image served a page and ended in its own tree".to_owned())
}

/// A server, killed when the trial ends early.
struct TrialServer(Child);

impl TrialServer {
    fn try_page(mut self) -> io::Result<()> {
        let trial_error =
            |text: String| io::Error::other(format!("the image fails its trial: {text}"));
        let mut line = String::new();
        let out = self.0.stdout.take();
        let mut out = BufReader::new(out.ok_or_else(|| trial_error("no output".into()))?);
        out.read_line(&mut line)?;
        let address = line
            .trim()
            .rsplit_once("http://")
            .map(|(_, address)| address);
        let address =
            address.ok_or_else(|| trial_error(format!("no address in its first line `{line}`")))?;
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TRIAL_TIMEOUT))?;
        stream.write_all(b"GET /page HTTP/1.1\r\nhost: image\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if !answer.ends_with("a page of the image") {
            return Err(trial_error(answer));
        }
        let pid = self.0.id().to_string();
        output(Command::new("kill").args(["-s", "TERM", &pid]))?;
        let signalled_at = Instant::now();
        while signalled_at.elapsed() < TRIAL_TIMEOUT {
            if let Some(status) = self.0.try_wait()? {
                let is_good = status.success();
                return is_good
                    .then_some(())
                    .ok_or_else(|| trial_error(status.to_string()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(trial_error("it does not end on SIGTERM".into()))
    }
}

impl Drop for TrialServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
