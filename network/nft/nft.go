// Package nft writes tables of nftables by netlink, with github.com/google/nftables: a Transaction in a network
// namespace, sets and maps of any size, and the fields that their keys are made of.
//
//	nft_linux.go    connections and transactions
//	fields_linux.go keys and values of sets
//
// It knows nothing of Kubernetes.
package nft
