package etcd

import (
	"encoding/binary"
	"syscall"
)

// privateByDefault makes every new file in a folder or below it accessible only to its owner, regardless of the mode
// with which it is created: etcd creates the snapshots of its log with mode 0666. It sets the folder's default ACL, see
// acl(5). On a file system without ACLs, only the modes of the folders protect the files.
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
