package storage_test

import (
	"testing"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestStorage_ValidateRejects(t *testing.T) {
	t.Parallel()
	const class = "metadata: {name: c}\nprovisioner: a.b/C\nallowedTopologies: [{matchLabelExpressions: [{key: " +
		"zone, values: [a]}]}]\n"
	kindtest.Create(t, "StorageClass", class, []kindtest.Case{
		{"provisioner", []string{"a.b/C", "a b"}, []string{"Invalid provisioner"}},
		{"no provisioner", []string{"a.b/C", "''"}, []string{"Required provisioner"}},
		{"policy", []string{"provisioner", "reclaimPolicy: Recycle\nvolumeBindingMode: Later\nprovisioner"},
			[]string{"NotSupported reclaimPolicy", "NotSupported volumeBindingMode"}},
		{"topology", []string{"{key: zone, values: [a]}", "{key: zone, values: [a, a]}, {key: zone}"},
			[]string{"Duplicate allowedTopologies[0].matchLabelExpressions[0].values[1]",
				"Required allowedTopologies[0].matchLabelExpressions[1].values",
				"Duplicate allowedTopologies[0].matchLabelExpressions[1].key"}},
		{"topology twice", []string{"[a]}]}]", "[a]}]}, {matchLabelExpressions: [{key: zone, values: [a]}]}]"},
			[]string{"Duplicate allowedTopologies[1].matchLabelExpressions"}},
	})
	kindtest.Update(t, "StorageClass", class, []kindtest.Case{{"all", []string{"a.b/C", "a.b/d\nparameters: {a: " +
		"b}\nvolumeBindingMode: WaitForFirstConsumer"}, []string{"Forbidden parameters", "Forbidden provisioner",
		"Invalid volumeBindingMode"}}})
	kindtest.Create(t, "CSIDriver", "metadata: {name: d}\nspec: {tokenRequests: [{audience: a}]}\n", []kindtest.Case{
		{"tokens", []string{"{audience: a}", "{audience: a, expirationSeconds: 1}, {audience: a}"},
			[]string{"Invalid spec.tokenRequests[0].expirationSeconds", "Duplicate spec.tokenRequests[1].audience"}},
		{"period", []string{"{token", "{nodeAllocatableUpdatePeriodSeconds: 9, token"},
			[]string{"Invalid spec.nodeAllocatableUpdatePeriodSeconds"}},
		{"modes", []string{"{token", "{volumeLifecycleModes: [Forever], fsGroupPolicy: Some, token"},
			[]string{"NotSupported spec.volumeLifecycleModes", "NotSupported spec.fsGroupPolicy"}},
	})
	const node = "metadata: {name: n}\nspec: {drivers: [{name: a.b, nodeID: n, topologyKeys: [zone]}]}\n"
	kindtest.Create(t, "CSINode", node, []kindtest.Case{
		{"driver", []string{"name: a.b, nodeID: n", "name: A_b, allocatable: {count: -1}"},
			[]string{"Invalid spec.drivers[0].name", "Required spec.drivers[0].nodeID",
				"Invalid spec.drivers[0].allocatable.count"}},
		{"keys", []string{"[zone]", "[zone, zone]"}, []string{"Duplicate spec.drivers[0]"}},
	})
	kindtest.Update(t, "CSINode", node, []kindtest.Case{
		{"id", []string{"nodeID: n", "nodeID: m"}, []string{"Invalid spec.drivers"}},
		{"count", []string{"nodeID: n", "nodeID: n, allocatable: {count: 3}"}, nil},
	})
	const attachment = "metadata: {name: a}\nspec: {attacher: a.b, nodeName: n, source: {persistentVolumeName: pv}}\n"
	kindtest.Create(t, "VolumeAttachment", attachment, []kindtest.Case{
		{"no source", []string{"{persistentVolumeName: pv}", "{}"}, []string{"Required spec.source"}},
		{"no name", []string{"persistentVolumeName: pv", "persistentVolumeName: ''"},
			[]string{"Required spec.source.persistentVolumeName"}},
		{"node", []string{"nodeName: n", "nodeName: A_b"}, []string{"Invalid spec.nodeName"}},
	})
	kindtest.Update(t, "VolumeAttachment", attachment,
		[]kindtest.Case{{"node", []string{"nodeName: n", "nodeName: m"}, []string{"Invalid spec"}}})
	const attributes = "metadata: {name: v}\ndriverName: a.b\nparameters: {a: b}\n"
	kindtest.Create(t, "VolumeAttributesClass", attributes,
		[]kindtest.Case{{"no parameters", []string{"{a: b}", "{}"}, []string{"Required parameters"}}})
	kindtest.Update(t, "VolumeAttributesClass", attributes,
		[]kindtest.Case{{"both", []string{"a.b", "a.c", "{a: b}", "{a: c}"},
			[]string{"Forbidden driverName", "Forbidden parameters"}}})
}

func TestVolumeAttachment_InlineVolumeRejects(t *testing.T) {
	t.Parallel()
	const attachment = "metadata: {name: a}\nspec: {attacher: a.b, nodeName: n, source: {inlineVolumeSpec: " +
		"{accessModes: [ReadWriteOnce], csi: {driver: a.b, volumeHandle: v}}}}\n"
	const path = "spec.source.inlineVolumeSpec"
	kindtest.Create(t, "VolumeAttachment", attachment, []kindtest.Case{
		{"no mode", []string{"accessModes: [ReadWriteOnce], ", ""}, []string{"Required " + path + ".accessModes"}},
		{"mode", []string{"[ReadWriteOnce]", "[Never]"}, []string{"NotSupported " + path + ".accessModes"}},
		{"of no driver", []string{"csi: {driver: a.b, volumeHandle: v}", "hostPath: {path: /a}"},
			[]string{"Required " + path + ".csi"}},
		{"volume", []string{"volumeHandle: v", "fsType: ext4"}, []string{"Required " + path + ".csi.volumeHandle"}},
		{"as a PersistentVolume", []string{"accessModes", "claimRef: {name: c}, capacity: {storage: 1Gi}, " +
			"persistentVolumeReclaimPolicy: Retain, nodeAffinity: {}, storageClassName: c, volumeMode: Block, " +
			"accessModes"}, []string{
			"Forbidden " + path + ".claimRef", "Forbidden " + path + ".capacity", "Forbidden " + path +
				".persistentVolumeReclaimPolicy",
			"Forbidden " + path + ".nodeAffinity", "Forbidden " + path + ".storageClassName", "Forbidden " + path +
				".volumeMode"}},
		{"both", []string{"source: {", "source: {persistentVolumeName: p, "}, []string{"Forbidden spec.source"}},
	})
}

func TestStorageClass_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "StorageClass", "provisioner: a.io/b", []kindtest.Case{
		{"provisioner", []string{"a.io/b", "''"}, []string{"Required provisioner"}},
		{"binding", []string{"provisioner", "volumeBindingMode: Late\nprovisioner"},
			[]string{"NotSupported volumeBindingMode"}},
	})
}
