//! Containers, as far as they can be seen from outside: the id in the path of a cgroup, and what the container's engine has written about it.
//!
//! | engine | where the id stands | names and labels |
//! |---|---|---|
//! | Docker | `/docker/ID`, `docker-ID.scope` | `/var/lib/docker/containers/ID/config.v2.json` |
//! | Podman, CRI-O | `libpod-ID.scope`, `crio-ID.scope` | `/var/lib/containers/storage/overlay-containers/containers.json`; annotations: `/run/containers/storage/overlay-containers/ID/userdata/config.json` |
//! | Kubernetes on containerd | `cri-containerd-ID.scope`, `/kubepods/…/podUID/ID` | annotations: `/run/containerd/io.containerd.runtime.v2.task/*/ID/config.json` |
//!
//! An id is 64 hexadecimal digits. Files that are missing, too long or not understood give no names and no labels.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The longest file that is read.
const LONGEST: u64 = 4 << 20;

/// The id of the innermost container in the path of a cgroup.
pub(crate) fn id(path: &str) -> Option<&str> {
    path.rsplit('/').find_map(|part| {
        let part = part.strip_suffix(".scope").unwrap_or(part);
        let last = part.rsplit(['-', ':']).next()?;
        let is_id = last.len() == 64 && last.bytes().all(|it| it.is_ascii_hexdigit());
        is_id.then_some(last)
    })
}

/// Names and labels of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) names: Vec<String>,
    pub(crate) labels: Vec<(String, String)>,
}

/// What the engines whose files lie below `root` have written about the container `id`.
pub(crate) fn about(root: &Path, id: &str) -> About {
    let mut found = About::default();
    let docker = root.join(format!("var/lib/docker/containers/{id}/config.v2.json"));
    if let Some(file) = read(&docker) {
        found.name(&file["Name"]);
        found.labels(&file["Config"]["Labels"]);
    }
    let storage = root.join("var/lib/containers/storage/overlay-containers/containers.json");
    let all = read(&storage).unwrap_or_default();
    let of_storage = all.as_array().into_iter().flatten();
    for container in of_storage.filter(|it| it["id"] == id) {
        let names = container["names"].as_array().into_iter().flatten();
        names.for_each(|name| found.name(name));
    }
    for bundle in bundles(root, id) {
        if let Some(file) = read(&bundle) {
            let annotations = &file["annotations"];
            found.name(&annotations["io.kubernetes.cri.container-name"]);
            found.name(&annotations["io.kubernetes.container.name"]);
            found.labels(annotations);
        }
    }
    found
}

/// Where the runtime's configuration may lie.
fn bundles(root: &Path, id: &str) -> Vec<PathBuf> {
    let podman = format!("run/containers/storage/overlay-containers/{id}/userdata/config.json");
    let mut all = vec![root.join(podman)];
    let tasks = root.join("run/containerd/io.containerd.runtime.v2.task");
    let namespaces = std::fs::read_dir(tasks).into_iter().flatten().flatten();
    all.extend(namespaces.map(|it| it.path().join(id).join("config.json")));
    all
}

fn read(path: &Path) -> Option<Value> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(LONGEST).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

impl About {
    fn name(&mut self, value: &Value) {
        if let Some(name) = value.as_str() {
            self.names.push(name.trim_start_matches('/').to_string());
        }
    }

    fn labels(&mut self, value: &Value) {
        for (key, value) in value.as_object().into_iter().flatten() {
            if let Some(value) = value.as_str() {
                self.labels.push((key.clone(), value.to_string()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn ids_are_found_where_engines_put_them() {
        for path in [
            format!("/docker/{ID}"),
            format!("/system.slice/docker-{ID}.scope"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod9f.slice/cri-containerd-{ID}.scope"
            ),
            format!("/kubepods/burstable/pod9f-2/{ID}"),
            format!("/kubepods-besteffort-pod9f.slice:cri-containerd:{ID}"),
            format!("/kubepods.slice/crio-{ID}.scope"),
        ] {
            assert_eq!(id(&path), Some(ID), "{path}");
        }
        for path in ["/", "/system.slice/redis.service", "/docker/0123456789ab"] {
            assert_eq!(id(path), None, "{path}");
        }
    }

    #[test]
    fn what_engines_have_written_is_found() {
        let root = std::env::temp_dir().join(format!("upshift-containers-{}", std::process::id()));
        let write = |path: String, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            format!("var/lib/docker/containers/{ID}/config.v2.json"),
            r#"{"Name":"/web","Config":{"Labels":{"tier":"front"}}}"#,
        );
        write(
            "var/lib/containers/storage/overlay-containers/containers.json".into(),
            &format!(r#"[{{"id":"other","names":["no"]}},{{"id":"{ID}","names":["pod"]}}]"#),
        );
        write(
            format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}/config.json"),
            r#"{"annotations":{"io.kubernetes.cri.container-name":"redis","a":1}}"#,
        );
        let found = about(&root, ID);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found.names, ["web", "pod", "redis"]);
        assert!(found.labels.contains(&("tier".into(), "front".into())));
        assert_eq!(found.labels.len(), 2);
        assert_eq!(about(&root, ID), About::default());
    }
}
