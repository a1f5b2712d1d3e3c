// Package nft writes nftables over netlink, with github.com/google/nftables: transactions in a network namespace, sets
// and maps of any size, and the fields of their keys.
//
//	nft_linux.go    connections and transactions
//	fields_linux.go keys and values of sets
//
// The package does not depend on Kubernetes.
package nft
