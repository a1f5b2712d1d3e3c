//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSystemd_OneProcess installs coxswain.service on a machine by the instructions in its comment. The test kills the
// process, stops the unit, and cuts the machine's power.
func TestSystemd_OneProcess(t *testing.T) {
	t.Parallel()
	m := newDatacenter(t).boot("one")
	require.Contains(t, m.run(installation(t, "coxswain.service")), "node-0")
	kubectl := "KUBECONFIG=/var/lib/private/coxswain/admin.kubeconfig kubectl "
	m.run(kubectl + "create configmap kept")

	require.Equal(t, "2147483648", m.property("coxswain", "MemoryMax"))
	require.Regexp(t, "^[1-9][0-9]+$", m.property("coxswain", "MemoryCurrent"), "the memory that counts against the limit")

	m.run("kill -9 " + m.property("coxswain", "MainPID"))
	m.eventuallyRuns("the killed process is back", kubectl+"get configmap kept")
	require.Equal(t, "1", m.property("coxswain", "NRestarts"))

	m.run("systemctl stop coxswain")
	require.Equal(t, "success", m.property("coxswain", "Result"))
	require.Equal(t, "0", m.property("coxswain", "ExecMainStatus"))
	m.powerOff()
	m.powerOn()
	m.eventuallyRuns("the machine's services are back", kubectl+"get configmap kept")
}

// TestSystemd_Parts installs the parts as separate units by the instructions in coxswain-apiserver.service. Each part
// runs as its own user, which cannot read the files of others. The test kills each part, and cuts the machine's power.
func TestSystemd_Parts(t *testing.T) {
	t.Parallel()
	m := newDatacenter(t).boot("parts")
	m.run(installation(t, "coxswain-apiserver.service"))
	m.kubectl = "KUBECONFIG=/var/lib/coxswain-pki/admin.kubeconfig kubectl "
	m.rollsOut("first")

	secrets := map[string]string{"coxswain-apiserver": "sa.key", "coxswain@controllers": "kubeconfig",
		"coxswain@scheduler": "kubeconfig", "coxswain@node": "kubeconfig"}
	for unit := range secrets {
		pid, uid := m.property(unit, "MainPID"), m.property(unit, "UID")
		require.NotEqual(t, "0", uid, unit)
		for other, file := range secrets {
			// As the unit's user, try the path of the other process's files.
			path := "/proc/" + m.property(other, "MainPID") + "/root/run/credentials/" + other + ".service/" + file
			m.run("test -s " + path)
			_, err := m.try("nsenter --target " + pid + " --mount --setuid " + uid + " --setgid " + uid + " cat " + path)
			require.Equal(t, unit == other, err == nil, "%s reads %s of %s", unit, file, other)
		}
	}
	m.run("test -s /var/lib/coxswain-pki/pki/ca.key")
	_, err := m.try("nsenter --target " + m.property("coxswain@controllers", "MainPID") + " --mount --setuid " +
		m.property("coxswain@controllers", "UID") + " cat /var/lib/coxswain-pki/pki/ca.key")
	require.Error(t, err, "the controllers read the CA's key")

	for unit := range secrets {
		m.run("kill -9 " + m.property(unit, "MainPID"))
	}
	for unit := range secrets {
		m.eventuallyRuns(unit+" is back", "test 1 = $(systemctl show -P NRestarts "+unit+") && systemctl is-active "+unit)
	}
	m.powerOff()
	m.powerOn()
	m.eventuallyRuns("the first pods are there", m.kubectl+"rollout status --timeout=10s deployment first")
	m.rollsOut("second")

	dropIn := "coxswain@controllers.service.d/signing.conf"
	m.run("install -D -m 0644 deploy/systemd/" + dropIn + " /etc/systemd/system/" + dropIn + " && systemctl daemon-reload && " +
		"systemctl restart coxswain@controllers && " + m.kubectl + `apply -f - <<-END
		{"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token", "metadata": {"name": "token",
		 "annotations": {"kubernetes.io/service-account.name": "default"}}}
		END`)
	m.eventuallyRuns("the controllers sign a token", m.kubectl+"get secret token -o jsonpath={.data.token} | grep .")

	// New certificates with another name: units with these certificates are restarted.
	m.run(`mkdir /etc/systemd/system/coxswain-certs.service.d
		cat > /etc/systemd/system/coxswain-certs.service.d/names.conf <<-'END'
		[Service]
		ExecStart=
		ExecStart=/usr/local/bin/coxswain certs --data-dir ${STATE_DIRECTORY} --nodes 1 --tls-san other.example.com
		END
		systemctl daemon-reload && systemctl restart coxswain-certs`)
	m.eventuallyRuns("the server has the other name", m.kubectl+"--tls-server-name other.example.com get nodes")
	m.rollsOut("third")
}

// TestSystemd_ThreeMachines installs three instances of each part by docs/operations.md. Either machine with
// controllers may fail, and rejoins by itself.
func TestSystemd_ThreeMachines(t *testing.T) {
	t.Parallel()
	d := newDatacenter(t)
	made, replicas := dataDir(t), filepath.Join(t.TempDir(), "for")
	certs(t, "--data-dir", made, "--server", "https://api.example.com:6443", "--nodes", "1",
		"--etcd-san", "machine-1,machine-2,machine-3", "--components-dir", replicas,
		"--component-replicas", "etcd=3,apiserver=3,controllers=2,scheduler=2")
	var machines []*machine
	for i := 1; i <= 3; i++ {
		number := strconv.Itoa(i)
		m := d.boot("machine-"+number, "api.example.com")
		m.kubectl = "KUBECONFIG=/root/admin.kubeconfig kubectl "
		m.copy(filepath.Join(made, "admin.kubeconfig"), "/root/")
		m.run("mkdir /etc/coxswain")
		folders := map[string]string{"etcd": "etcd-" + number, "apiserver": "apiserver-" + number}
		if i < 3 {
			folders["controllers"], folders["scheduler"] = "controllers-"+number, "scheduler-"+number
		} else {
			folders["node"] = "node"
		}
		for part, replica := range folders {
			m.copy(filepath.Join(replicas, replica), "/etc/coxswain/"+part)
		}
		m.run(threeMachines)
		m.run("echo NAME=etcd-" + number + " HOST=machine-" + number +
			" CLUSTER=etcd-1=https://machine-1:2380,etcd-2=https://machine-2:2380,etcd-3=https://machine-3:2380 | " +
			"tr ' ' '\\n' > /etc/coxswain/etcd.env && systemctl enable --now coxswain-etcd")
		m.run("echo ETCD_SERVERS=https://machine-1:2379,https://machine-2:2379,https://machine-3:2379 > " +
			"/etc/coxswain/apiserver.env")
		machines = append(machines, m)
	}
	for i, m := range machines {
		parts := "coxswain@controllers coxswain@scheduler"
		if i == 2 {
			parts = "coxswain@node"
		}
		m.run("systemctl enable --now coxswain-apiserver " + parts)
	}
	machines[2].rollsOut("first")

	for i, lost := range machines[:2] {
		lost.powerOff()
		machines[2].rollsOut("without-" + strconv.Itoa(i+1))
		lost.powerOn()
		lost.eventuallyRuns("its etcd and its API server are back", "coxswain health http://127.0.0.1:2381/health && "+
			"coxswain health https://127.0.0.1:6443/readyz")
	}
}

// threeMachines installs the units and their drop-ins for three machines.
const threeMachines = `
	install -m 0755 bin/coxswain bin/kubectl-lite /usr/local/bin/
	cd deploy/systemd
	for file in *.service */three-machines.conf; do install -D -m 0644 "$file" "/etc/systemd/system/$file"; done
	systemctl daemon-reload`

// rollsOut creates a Deployment and requires that its pods run within a minute.
func (m *machine) rollsOut(name string) {
	m.t.Helper()
	m.eventuallyRuns("a Deployment is made", m.kubectl+"get deployment "+name+" || "+
		m.kubectl+"create deployment "+name+" --image=example --replicas=2")
	m.run(m.kubectl + "rollout status --timeout=60s deployment " + name)
}

// installation returns the commands in the comment at the top of a unit.
func installation(t *testing.T, unit string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(systemdUnits, unit))
	require.NoError(t, err)
	comment, _, _ := strings.Cut(string(content), "[Unit]")
	var commands []string
	for line := range strings.Lines(comment) {
		if command, ok := strings.CutPrefix(line, "#   "); ok {
			commands = append(commands, command)
		}
	}
	require.NotEmpty(t, commands)
	return strings.Join(commands, "")
}

// property returns a property of a unit.
func (m *machine) property(unit, name string) string {
	m.t.Helper()
	return m.run("systemctl show -P " + name + " " + unit)
}

// eventuallyRuns requires that a command succeeds within a minute.
func (m *machine) eventuallyRuns(what, command string) {
	m.t.Helper()
	eventually(m.t, time.Minute, what, func() bool {
		_, err := m.try(command)
		return err == nil
	})
}
