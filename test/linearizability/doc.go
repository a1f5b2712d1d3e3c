// Package linearizability kills, pauses, restarts and disconnects servers under load, and checks the results that their
// clients saw.
//
// Clients write, read and watch through two API servers on three members of etcd. Their results are
// recorded (record_test.go) and compared with a model: writes and consistent reads with a register per
// key, by porcupine (register_test.go); watches and lists with etcd's own history, by the guarantees
// that etcd names for its watch (watches_test.go). The faults are in faults_test.go; the processes are
// in process_test.go, the network between them in wire_test.go. durability_test.go kills a server with an embedded etcd
// and checks that all acknowledged writes exist.
//
// The tests are behind the build tag e2e and run the binaries of COXSWAIN_BIN. COXSWAIN_SOAK,
// a number of faults, makes them long.
package linearizability
