package etcd

import (
	"encoding/binary"
	"syscall"
)

// privateByDefault gives every file that is created in a folder or below it to its owner alone,
// whatever mode it is created with: etcd creates the snapshots of its log with 0666. It is the folder's
// default ACL, which acl(5) describes; a file system without ACLs has only the modes of the folders.
func privateByDefault(dir string) {
	const version, owner, group, other, nobody = 2, 1, 4, 32, ^uint32(0)
	acl := binary.LittleEndian.AppendUint32(nil, version)
	for _, entry := range [][2]uint16{{owner, 7}, {group, 0}, {other, 0}} {
		acl = binary.LittleEndian.AppendUint16(acl, entry[0])
		acl = binary.LittleEndian.AppendUint16(acl, entry[1])
		acl = binary.LittleEndian.AppendUint32(acl, nobody)
	}
	_ = syscall.Setxattr(dir, "system.posix_acl_default", acl, 0)
}
