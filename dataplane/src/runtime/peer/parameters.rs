//! What a config says of a connection becomes what a queue pair is connected with.

use crate::config::{self, Connection, RemoteAccess};
use crate::provider::connect::{AlternatePath, EndpointParameters, GidChoice, PathMigration};
use crate::provider::{Access, GidKind};

/// The parameters of a port's connection.
pub(crate) fn parameters(port: u8, connection: &Connection) -> EndpointParameters {
    let kind = connection.gid_kind.map(|kind| match kind {
        config::GidKind::Infiniband => GidKind::InfiniBand,
        config::GidKind::RoceV1 => GidKind::RoceV1,
        config::GidKind::RoceV2 => GidKind::RoceV2,
    });
    let allowed = |access: &RemoteAccess| match access {
        RemoteAccess::RemoteWrite => Access::REMOTE_WRITE,
        RemoteAccess::RemoteRead => Access::REMOTE_READ,
        RemoteAccess::RemoteAtomic => Access::REMOTE_ATOMIC,
    };
    EndpointParameters {
        port,
        gid: match connection.gid_index {
            Some(index) => GidChoice::At(index),
            None => GidChoice::Is { gid: connection.gid, kind },
        },
        pkey_index: connection.pkey_index,
        access: connection.access.iter().map(allowed).collect(),
        qkey: connection.qkey,
        path_mtu: connection.path_mtu,
        grh: connection.grh,
        hop_limit: connection.hop_limit,
        traffic_class: connection.traffic_class,
        flow_label: connection.flow_label,
        service_level: connection.service_level,
        source_path_bits: connection.source_path_bits,
        static_rate: connection.static_rate,
        sq_psn: connection.sq_psn,
        rq_psn: connection.rq_psn,
        max_rd_atomic: connection.max_rd_atomic,
        max_dest_rd_atomic: connection.max_dest_rd_atomic,
        min_rnr_timer: connection.min_rnr_timer,
        timeout: connection.timeout,
        retry_count: connection.retry_count,
        rnr_retry: connection.rnr_retry,
        alternate: connection.alternate.as_ref().map(alternate),
        path_migration: connection.path_migration.map(|state| match state {
            config::PathMigration::Migrated => PathMigration::Migrated,
            config::PathMigration::Rearm => PathMigration::Rearm,
            config::PathMigration::Armed => PathMigration::Armed,
        }),
        allow_self: connection.allow_self,
    }
}

fn alternate(path: &config::Alternate) -> AlternatePath {
    AlternatePath {
        port: path.device_port,
        gid: path.gid,
        source_gid_index: path.source_gid_index,
        lid: path.lid,
        pkey_index: path.pkey_index,
        timeout: path.timeout,
        service_level: path.service_level,
        source_path_bits: path.source_path_bits,
        static_rate: path.static_rate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a config leaves out is what a handshake has by itself.
    #[test]
    fn defaults_agree() {
        assert_eq!(parameters(1, &Connection::default()), EndpointParameters::default());
    }

    #[test]
    fn every_key_arrives() {
        let text = "gid = 'fe80::7'\ngid_kind = 'roce_v1'\npkey_index = 2\naccess = ['remote_read', 'remote_atomic']\n\
                    qkey = 3\npath_mtu = 2048\ngrh = true\nhop_limit = 4\ntraffic_class = 5\nflow_label = 6\n\
                    service_level = 7\nsource_path_bits = 8\nstatic_rate = 9\nsq_psn = 10\nrq_psn = 11\n\
                    max_rd_atomic = 12\nmax_dest_rd_atomic = 13\nmin_rnr_timer = 14\ntimeout = 15\nretry_count = 3\n\
                    rnr_retry = 2\nallow_self = true\npath_migration = 'rearm'\n\
                    alternate = { lid = 20, gid = 'fe80::8', device_port = 2, source_gid_index = 21, pkey_index = 22, \
                    timeout = 23, service_level = 11, source_path_bits = 24, static_rate = 7 }";
        let mut connection: Connection = toml::from_str(text).unwrap();
        let expected = EndpointParameters {
            port: 9,
            gid: GidChoice::Is { gid: "fe80::7".parse().ok(), kind: Some(GidKind::RoceV1) },
            pkey_index: 2,
            access: Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            qkey: 3,
            path_mtu: Some(2048),
            grh: Some(true),
            hop_limit: 4,
            traffic_class: 5,
            flow_label: 6,
            service_level: 7,
            source_path_bits: 8,
            static_rate: 9,
            sq_psn: 10,
            rq_psn: Some(11),
            max_rd_atomic: 12,
            max_dest_rd_atomic: 13,
            min_rnr_timer: 14,
            timeout: 15,
            retry_count: 3,
            rnr_retry: 2,
            alternate: Some(AlternatePath {
                port: 2,
                gid: "fe80::8".parse().ok(),
                source_gid_index: 21,
                lid: 20,
                pkey_index: 22,
                timeout: 23,
                service_level: 11,
                source_path_bits: 24,
                static_rate: 7,
            }),
            path_migration: Some(PathMigration::Rearm),
            allow_self: true,
        };
        assert_eq!(parameters(9, &connection), expected);
        connection.gid_index = Some(4);
        assert_eq!(parameters(9, &connection).gid, GidChoice::At(4));
    }
}
