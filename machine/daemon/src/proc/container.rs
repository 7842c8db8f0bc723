//! Finds the container of a process from outside, by the id in the path of its cgroup, and reads
//! the files that the container's engine keeps about it.
//!
//! | engine | path with the id | files with names, labels and annotations |
//! |---|---|---|
//! | Docker | `/docker/ID`, `docker-ID.scope` | `/var/lib/docker/containers/ID/config.v2.json` |
//! | Podman, CRI-O | `libpod-ID.scope`, `crio-ID.scope` | `containers.json`, `ID/…/config.json` |
//! | Kubernetes | `cri-containerd-ID.scope`, `/kubepods/…/podUID/ID` | `ID/config.json` |
//!
//! The files of Podman and CRI-O are below `/var/lib/containers/storage/overlay-containers` and
//! `/run/containers/storage/overlay-containers`, those of Kubernetes on containerd below
//! `/run/containerd/io.containerd.runtime.v2.task/*`.
//!
//! An id consists of 64 hexadecimal digits. Files that are missing, too long or invalid yield no
//! names and no labels.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

const MAX_FILE_BYTES: u64 = 4 << 20;

/// Returns the id of the innermost container in the path of a cgroup.
pub(crate) fn id(path: &str) -> Option<&str> {
    path.rsplit('/').find_map(|part| {
        let part = part.strip_suffix(".scope").unwrap_or(part);
        let last = part.rsplit(['-', ':']).next()?;
        let is_id = last.len() == 64 && last.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then_some(last)
    })
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ContainerInfo {
    pub(crate) names: Vec<String>,
    pub(crate) labels: Vec<(String, String)>,
}

/// Returns the names and labels that engines have written about container `id`, to files below
/// `root`.
pub(crate) fn info(root: &Path, id: &str) -> ContainerInfo {
    let mut found = ContainerInfo::default();
    let docker = root.join(format!("var/lib/docker/containers/{id}/config.v2.json"));
    if let Some(file) = read(&docker) {
        found.add_name(&file["Name"]);
        found.add_labels(&file["Config"]["Labels"]);
    }
    let storage = root.join("var/lib/containers/storage/overlay-containers/containers.json");
    let all = read(&storage).unwrap_or_default();
    let of_storage = all.as_array().into_iter().flatten();
    for container in of_storage.filter(|container| container["id"] == id) {
        let names = container["names"].as_array().into_iter().flatten();
        names.for_each(|name| found.add_name(name));
    }
    for bundle in bundles(root, id) {
        if let Some(file) = read(&bundle) {
            let annotations = &file["annotations"];
            found.add_name(&annotations["io.kubernetes.cri.container-name"]);
            found.add_name(&annotations["io.kubernetes.container.name"]);
            found.add_labels(annotations);
        }
    }
    found
}

/// Returns the paths at which a runtime may store the configuration of container `id`.
fn bundles(root: &Path, id: &str) -> Vec<PathBuf> {
    let podman = format!("run/containers/storage/overlay-containers/{id}/userdata/config.json");
    let mut all = vec![root.join(podman)];
    let tasks = root.join("run/containerd/io.containerd.runtime.v2.task");
    let namespaces = std::fs::read_dir(tasks).into_iter().flatten().flatten();
    all.extend(namespaces.map(|entry| entry.path().join(id).join("config.json")));
    all
}

fn read(path: &Path) -> Option<Value> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(MAX_FILE_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

impl ContainerInfo {
    fn add_name(&mut self, value: &Value) {
        if let Some(name) = value.as_str() {
            self.names.push(name.trim_start_matches('/').to_string());
        }
    }

    fn add_labels(&mut self, value: &Value) {
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
    fn ids_are_found_in_the_paths_of_engines() {
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
    fn names_and_labels_of_engines_are_found() {
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
        let found = info(&root, ID);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found.names, ["web", "pod", "redis"]);
        assert!(found.labels.contains(&("tier".into(), "front".into())));
        assert_eq!(found.labels.len(), 2);
        assert_eq!(info(&root, ID), ContainerInfo::default());
    }
}
